// The wall: a tile per node, a square per chip, on a canvas. The server sends tiles (live.py) and decides everything;
// this only draws, and says what was chosen. Names are drawn as text, and never become HTML.

const BROKEN = 1, NETWORK = 2, CUT = 4, KEPT = 8, NEXT = 16, CONFLICT = 32, MARKS = 64;
const SIZES = [26, 18, 14, 11, 8, 6, 4, 3];
const NAMED = 11; // from this size on a tile has its name
// Paul Tol's muted colours, told apart with any colour vision.
const JOBS = ["#cc6677", "#88ccee", "#117733", "#ddcc77", "#aa4499", "#44aa99", "#999933", "#882255", "#6699cc"];

const colourOf = (job) => {
  let hash = 2166136261;
  for (let at = 0; at < job.length; at++) hash = Math.imul(hash ^ job.charCodeAt(at), 16777619);
  return JOBS[(hash >>> 0) % JOBS.length];
};

// Where the chips of a tile are, in chips and gaps: rings and meshes in rows of their own, dies of a card side by side.
const layouts = new Map();
const layoutOf = (sizes) => {
  const key = sizes.join();
  if (layouts.has(key)) return layouts.get(key);
  const chips = sizes.reduce((sum, size) => sum + size, 0);
  const columns = chips > 8 ? 8 : 4;
  const spots = [];
  let column = 0, row = 0, gaps = 0, breaks = 0;
  sizes.forEach((size, number) => {
    if (number && (size >= 4 || column + size > columns)) {
      if (column) row++;
      if (size >= 4) breaks++;
      column = gaps = 0;
    } else if (number && sizes.length > 1) gaps++;
    for (let at = 0; at < size; at++) {
      if (column === columns) { column = gaps = 0; row++; }
      spots.push([column++, row, gaps, breaks]);
    }
  });
  const layout = { spots, columns: Math.max(0, ...spots.map(([x]) => x + 1)), rows: row + 1,
    gaps: Math.max(0, ...spots.map(([, , gap]) => gap)), breaks };
  layouts.set(key, layout);
  return layout;
};

export default {
  template: `<div class="wall"><canvas tabindex="0" role="application"
    aria-label="The chips of all nodes. Arrows: node; shift and arrows: chip; Enter: choose; Escape: show all"
    @click="clicked" @mousemove="hovered" @mouseleave="move(-1, -1)" @keydown="typed"></canvas>
    <p class="spot" aria-live="polite">{{ said }}</p></div>`,
  data: () => ({ said: "" }),
  mounted() {
    this.tiles = new Map(); // by name; the rest is not reactive either
    this.early = [];
    this.seq = -1;
    this.shown = [];
    this.over = {};
    this.place = null;
    this.here = this.chip = -1;
    this.canvas = this.$el.querySelector("canvas");
    this.canvas.spot = (name, chip) => this.spot(name, chip);
    new ResizeObserver(() => this.lay()).observe(this.$el);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    new MutationObserver(() => this.draw()).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.now = null; // the tiles that are current, while others are shown
    this.load();
  },
  methods: {
    async load() {
      const asked = performance.now();
      const answer = await (await fetch("wall.json")).json();
      for (const tile of answer.tiles) (this.now || this.tiles).set(tile[0], tile);
      this.seq = answer.seq;
      for (const [seq, tiles, gone] of this.early.splice(0)) this.patch(seq, tiles, gone);
      this.lay();
      requestAnimationFrame(() => { this.canvas.dataset.drawn = Math.round(performance.now()); this.canvas.dataset.loaded = Math.round(performance.now() - asked); });
    },
    patch(seq, tiles, gone) {
      if (this.seq < 0) return void this.early.push([seq, tiles, gone]);
      if (seq <= this.seq) return; // the snapshot has it
      const started = performance.now();
      this.seq = seq;
      const current = this.now || this.tiles, known = current.size;
      for (const name of gone) current.delete(name);
      for (const tile of tiles) current.set(tile[0], tile);
      if (this.now) return;
      if (gone.length || this.tiles.size !== known) this.lay();
      else this.draw(tiles.map((tile) => this.order.get(tile[0])).filter((at) => at !== undefined));
      this.canvas.dataset.patched = Math.round(performance.now() - started);
      this.canvas.dataset.tiles = Number(this.canvas.dataset.tiles || 0) + tiles.length;
      this.say();
    },
    // Shows the tiles of a time before; null shows the current ones again.
    past(tiles) {
      const current = this.now || this.tiles;
      this.now = tiles ? current : null;
      this.tiles = tiles ? new Map(tiles.map((tile) => [tile[0], tile])) : current;
      this.here = -1;
      this.lay();
      this.canvas.dataset.past = tiles ? "yes" : "";
    },
    overlay(over) { this.over = over; this.draw(); },
    show(level, value) { this.place = value ? [level, value] : null; this.here = -1; this.lay(); },

    lay() {
      const width = this.$el.clientWidth;
      if (!width || this.seq < 0) return;
      const inside = ([, , , places]) => !this.place || places[this.place[0]] === this.place[1];
      this.shown = [...this.tiles.values()].filter(inside).map((tile) => tile[0]).sort(natural);
      this.order = new Map(this.shown.map((name, at) => [name, at]));
      const shapes = this.shown.map((name) => layoutOf(this.tiles.get(name)[4]));
      const most = (of) => shapes.reduce((max, shape) => Math.max(max, of(shape)), 1);
      const columns = most((s) => s.columns), rows = most((s) => s.rows), gaps = most((s) => s.gaps), breaks = most((s) => s.breaks);
      for (this.size of SIZES) {
        const gap = this.size > 4 ? 1 : 0, margin = this.size > 6 ? 10 : this.size > 3 ? 5 : 3;
        this.step = this.size + gap;
        this.gap = Math.max(1, Math.round(this.size / 3));
        this.top = this.size >= NAMED ? 14 : 0;
        this.tile = [columns * this.step + gaps * this.gap + margin, rows * this.step + breaks * this.gap + this.top + margin];
        this.across = Math.max(1, Math.floor(width / this.tile[0]));
        this.height = Math.ceil(this.shown.length / this.across) * this.tile[1];
        const screens = this.shown.length > 200 ? 0.75 : 1.5; // of a group the names are worth scrolling
        if (this.height <= Math.max(360, innerHeight * screens)) break;
      }
      const scale = devicePixelRatio || 1;
      this.canvas.width = width * scale;
      this.canvas.height = Math.max(this.height, 40) * scale;
      this.canvas.style.height = `${Math.max(this.height, 40)}px`;
      this.draw();
    },
    // Draws all tiles, or only some: of thousands a pointer that moves would else draw all of them again.
    draw(some) {
      if (this.seq < 0 || !this.tile) return;
      const pen = this.canvas.getContext("2d"), style = getComputedStyle(this.$el);
      const scale = devicePixelRatio || 1;
      const ink = (this.ink = Object.fromEntries(["free", "line", "text", "closed", "broken", "good", "focus", "back"]
        .map((name) => [name, style.getPropertyValue(`--${name}`).trim()])));
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.font = "11px sans-serif";
      if (!some) pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
      for (const at of some || this.shown.keys()) {
        const tile = this.tiles.get(this.shown[at]);
        const left = (at % this.across) * this.tile[0], top = Math.floor(at / this.across) * this.tile[1];
        if (some) pen.clearRect(left - 1, top - 1, ...this.tile);
        if (tile) this.drawTile(pen, tile, left, top, at === this.here);
      }
      Object.assign(this.canvas.dataset, { nodes: this.shown.length, size: this.size, dimmed: Object.keys(this.over.dim || {}).length });
    },
    drawTile(pen, [name, , reason, , sizes, jobs, chips], left, top, isHere) {
      const { dim = {}, fit = {}, help = {}, job = "" } = this.over;
      const ink = this.ink, size = this.size, shape = layoutOf(sizes);
      const wide = this.tile[0] - (size > 6 ? 6 : 2), high = this.tile[1] - (size > 6 ? 6 : 2);
      pen.globalAlpha = 1;
      if (reason) { pen.fillStyle = ink.closed; pen.fillRect(left, top, wide, high); }
      const dimmed = dim[name] !== undefined;
      if (size >= NAMED) {
        pen.globalAlpha = dimmed ? 0.6 : 1;
        pen.fillStyle = ink.text;
        const letter = dimmed ? `${dim[name]} ` : fit[name] ? "✓ " : "";
        pen.fillText(fitting(pen, letter + (help[name] ? "▲ " : "") + name, wide - 4), left + 3, top + 11);
      }
      const colours = jobs.map(colourOf);
      chips.forEach((code, at) => {
        if (!shape.spots[at]) return;
        const [column, row, gaps, breaks] = shape.spots[at], mark = code % MARKS, holder = (code - mark) / MARKS;
        const x = left + 3 + column * this.step + gaps * this.gap, y = top + this.top + 3 + row * this.step + breaks * this.gap;
        const own = job && holder && jobs[holder - 1] === job;
        pen.globalAlpha = own ? 1 : job && holder ? 0.25 : dimmed ? 0.3 : 1;
        pen.fillStyle = holder ? colours[holder - 1] : ink.free;
        pen.fillRect(x, y, size, size);
        if (!holder && size > 4) { pen.strokeStyle = ink.line; pen.lineWidth = 1; pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1); }
        if (mark) this.drawMarks(pen, mark, holder, x, y, size);
        if (own) { pen.strokeStyle = ink.text; pen.lineWidth = 2; pen.strokeRect(x, y, size, size); }
        if (isHere && at === this.chip) { pen.strokeStyle = ink.focus; pen.lineWidth = 2; pen.strokeRect(x - 1, y - 1, size + 2, size + 2); }
      });
      pen.globalAlpha = 1;
      const frame = isHere ? ink.focus : help[name] ? ink.good : fit[name] ? ink.good : reason ? ink.line : "";
      if (!frame) return;
      pen.strokeStyle = frame;
      pen.lineWidth = isHere || help[name] || fit[name] ? 2 : 1;
      pen.setLineDash(help[name] && !isHere ? [5, 3] : reason && !isHere && !fit[name] ? [2, 2] : []);
      pen.strokeRect(left + 0.5, top + 0.5, wide, high);
      pen.setLineDash([]);
    },
    // Each mark has a shape of its own, so none depends on a colour.
    drawMarks(pen, mark, holder, x, y, size) {
      const line = (from, to, colour, width) => {
        pen.strokeStyle = colour; pen.lineWidth = width; pen.beginPath(); pen.moveTo(...from); pen.lineTo(...to); pen.stroke();
      };
      const edge = Math.max(1, size / 7), low = y + size, right = x + size;
      if (mark & KEPT) {
        line([x, low], [right, y], this.ink.text, edge);
        if (size > 8) { line([x, y + size / 2], [x + size / 2, y], this.ink.text, 1); line([x + size / 2, low], [right, y + size / 2], this.ink.text, 1); }
      }
      if (mark & NEXT) { pen.fillStyle = this.ink.text; pen.beginPath(); pen.arc(x + size / 2, y + size / 2, size / 4, 0, 7); pen.fill(); }
      if (mark & CUT) line([x, y + size / 2], [right, y + size / 2], this.ink.text, edge);
      if (mark & NETWORK) { pen.fillStyle = this.ink.text; pen.beginPath(); pen.moveTo(x, y); pen.lineTo(x + size / 2, y); pen.lineTo(x, y + size / 2); pen.fill(); }
      if (mark & CONFLICT) line([x + size / 2, y], [x + size / 2, low], this.ink.broken, edge * 2);
      if (mark & BROKEN) {
        if (!holder) { pen.fillStyle = this.ink.broken; pen.fillRect(x, y, size, size); }
        const cross = holder ? this.ink.broken : this.ink.back, width = Math.max(1, size / (holder ? 5 : 7));
        line([x, y], [right, low], cross, width);
        line([right, y], [x, low], cross, width);
        if (holder) { pen.strokeStyle = cross; pen.lineWidth = edge; pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1); }
      }
    },

    at(event) {
      const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      const column = Math.floor(x / this.tile[0]), at = Math.floor(y / this.tile[1]) * this.across + column;
      if (column >= this.across || !this.shown[at]) return [-1, -1];
      const inX = x - column * this.tile[0], inY = y % this.tile[1];
      const spots = layoutOf(this.tiles.get(this.shown[at])[4]).spots;
      return [at, spots.findIndex(([column, row, gaps, breaks]) => {
        const dx = inX - 3 - column * this.step - gaps * this.gap, dy = inY - this.top - 3 - row * this.step - breaks * this.gap;
        return dx >= 0 && dx < this.size && dy >= 0 && dy < this.size;
      })];
    },
    spot(name, chip = -1) {
      const box = this.canvas.getBoundingClientRect(), at = this.shown.indexOf(name);
      const [column, row, gaps, breaks] = chip < 0 ? [0, 0, 0, 0] : layoutOf(this.tiles.get(name)[4]).spots[chip];
      const inside = chip < 0 ? [1, 5] : [3 + this.size / 2, this.top + 3 + this.size / 2];
      return { x: box.left + (at % this.across) * this.tile[0] + column * this.step + gaps * this.gap + inside[0],
        y: box.top + Math.floor(at / this.across) * this.tile[1] + row * this.step + breaks * this.gap + inside[1] };
    },
    say() {
      const tile = this.tiles.get(this.shown[this.here]);
      this.said = tile ? words(tile, this.chip, this.over) : "";
    },
    move(at, chip) {
      if (at === this.here && chip === this.chip) return;
      const moved = [this.here, at].filter((one) => this.shown[one]);
      [this.here, this.chip] = [at, chip];
      this.draw(moved);
      this.say();
    },
    hovered(event) { this.move(...this.at(event)); },
    clicked(event) { this.move(...this.at(event)); this.choose(); },
    choose() { if (this.here >= 0) this.$emit("choose", { node: this.shown[this.here], chip: this.chip }); },
    typed(event) {
      const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.across, ArrowDown: this.across };
      if (event.key in moves) {
        const tile = this.tiles.get(this.shown[Math.max(this.here, 0)]);
        if (event.shiftKey && tile && this.here >= 0) {
          this.move(this.here, Math.min(Math.max(this.chip + Math.sign(moves[event.key]), -1), tile[6].length - 1));
        } else {
          const to = this.here < 0 ? 0 : this.here + moves[event.key];
          if (this.shown[to]) this.move(to, -1);
        }
        const box = this.canvas.getBoundingClientRect(), y = this.spot(this.shown[this.here]).y;
        if (y < 60 || y > innerHeight - 60) scrollBy(0, y - innerHeight / 2);
        else if (box.top > innerHeight) this.canvas.scrollIntoView();
      } else if (event.key === "Enter" || event.key === " ") this.choose();
      else if (event.key === "Escape") this.$emit("choose", {});
      else return;
      event.preventDefault();
    },
  },
};

const collator = new Intl.Collator("en", { numeric: true });
const natural = collator.compare;

const fitting = (pen, text, width) => {
  if (pen.measureText(text).width <= width) return text;
  const letters = Math.floor(width / 6.2) - 1; // the end of a node's name tells it from others
  return letters < 1 ? "" : `…${text.slice(-letters)}`;
};

const words = ([name, product, reason, places, , jobs, chips], chip, { dim = {}, reasons = {}, help = {} }) => {
  const said = [name, product, ...places.slice(0, -1).filter(Boolean)];
  if (chip >= 0) {
    const code = chips[chip], mark = code % MARKS, holder = (code - mark) / MARKS;
    const told = [[BROKEN, "broken"], [NETWORK, "limited"], [CUT, "cut"], [KEPT, "kept for a job that waits"],
      [NEXT, "next for a pod"], [CONFLICT, "held twice"]].filter(([bit]) => mark & bit).map(([, word]) => word);
    said.push(`chip ${chip}: ${[holder ? jobs[holder - 1] : "no job", ...told].join(", ")}`);
  } else if (jobs.length) said.push(jobs.slice(0, 3).join(", ") + (jobs.length > 3 ? ` and ${jobs.length - 3} more` : ""));
  if (reason) said.push(reason);
  if (dim[name]) said.push(`refuses: ${reasons[dim[name]] || dim[name]}`);
  if (help[name]) said.push(`would help: ${help[name]}`);
  return said.filter(Boolean).join(" · ");
};
