"""The ConfigMap that both the plugin and operators write, on a real API server."""

import pytest

from ascend.chips import ChipSet
from ascend.cordons import CORDONED, Cordon, read_all_cordons, read_cordons, write_cordons
from ascend.deviceinfo import LABELS, NAMESPACE, config_map_name
from ascend.errors import Conflict
from ascend.kube.objects import CONFIG_MAPS, ConfigMap, JsonObject
from device_plugin.publish.device_info_configmap import DeviceInfoConfigMap
from sandbox.apiserver import ApiServer
from tests.device_plugin.api import NODE, RecordingClient, running, until

NAME = config_map_name(NODE)


def written(*separated: int, content: str = "") -> dict[str, str]:
    return {"DeviceInfoCfg": content, "ManuallySeparateNPU": ",".join(f"Ascend910-{each}" for each in separated)}


class Rig:
    def __init__(self, client: RecordingClient) -> None:
        self.client = client
        self.edits: list[tuple[ChipSet, ChipSet]] = []
        self.slips: list[tuple[str, ...]] = []
        self.board = DeviceInfoConfigMap(
            client, NODE, lambda added, removed: self.edits.append((added, removed)), self.slips.append
        )

    async def edit(self, text: str | None) -> None:
        """Edit the ConfigMap as an operator does."""
        await self.client.patch(CONFIG_MAPS, NAME, {"data": {"ManuallySeparateNPU": text}}, namespace=NAMESPACE)

    async def cordon(self, cordons: dict[int, Cordon]) -> None:
        """Cordon chips that are listed already."""
        await self.annotate(write_cordons(cordons))

    async def annotate(self, text: str | None) -> None:
        body: JsonObject = {"metadata": {"annotations": {CORDONED: text}}}
        await self.client.patch(CONFIG_MAPS, NAME, body, namespace=NAMESPACE)

    async def there(self) -> ConfigMap:
        return await self.client.get(CONFIG_MAPS, NAME, NAMESPACE)


@pytest.fixture
def rig(client: RecordingClient) -> Rig:
    return Rig(client)


async def test_the_config_map_is_created_once_and_then_patched(rig: Rig) -> None:
    assert await rig.board.fetch() == {}
    await rig.board.write(written(1))
    await rig.board.write(written(1, 2))
    made = await rig.there()
    assert (made.data, made.metadata.labels) == (written(1, 2), LABELS)
    assert rig.edits == []


async def test_the_separations_of_an_earlier_plugin_are_not_an_edit(rig: Rig, client: RecordingClient) -> None:
    await rig.board.write(written(3))
    later = Rig(client)
    assert await later.board.fetch() == written(3)
    await later.board.write(written(3))
    assert later.edits == []


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("", (0, 0b110)),
        (None, (0, 0b110)),
        ("Ascend910-1", (0, 0b100)),
        ("Ascend910-1,Ascend910-2,Ascend910-7", (0x80, 0)),
        ("Ascend910-7, Ascend910-1", (0x80, 0b100)),
    ],
)
async def test_a_write_after_an_edit_conflicts_and_reports_the_edit(
    rig: Rig, text: str | None, edit: tuple[ChipSet, ChipSet]
) -> None:
    await rig.board.write(written(1, 2))
    await rig.edit(text)
    with pytest.raises(Conflict):
        await rig.board.write(written(1, 2, content="newer"))
    assert rig.edits == [edit]
    assert (await rig.there()).data.get("ManuallySeparateNPU") == text
    await rig.board.write(written(5, content="newest"))
    assert (await rig.there()).data == written(5, content="newest")
    assert rig.edits == [edit]


async def test_a_cordon_of_a_chip_that_is_listed_already_is_an_edit(rig: Rig, client: RecordingClient) -> None:
    await rig.board.write(written(1, 2))
    await rig.cordon({2: Cordon("fan")})
    with pytest.raises(Conflict):
        await rig.board.write(written(1, 2))
    await rig.board.write(written(1, 2))
    assert rig.edits == [(0b100, 0)]
    await rig.cordon({2: Cordon("another fan")})
    with pytest.raises(Conflict):
        await rig.board.write(written(1, 2))
    assert rig.edits == [(0b100, 0), (0b100, 0)]
    later = Rig(client)
    await later.board.fetch()
    await later.board.write(written(1, 2))
    assert (later.board.cordoned, later.edits) == (0b100, [])
    assert read_cordons(await rig.there()) == {2: Cordon("another fan")}


async def test_a_cordon_ends_with_the_separation_and_explains_no_later_one(rig: Rig, client: RecordingClient) -> None:
    await rig.board.write(written(1, 2))
    await rig.cordon({1: Cordon("fan"), 2: Cordon("fan")})
    await rig.edit("Ascend910-1")  # by hand, which leaves the annotation
    with pytest.raises(Conflict):
        await rig.board.write(written(1, 2))
    assert rig.edits == [(0b10, 0b100)]
    await rig.board.write(written(1, 2))  # a rule has separated it again meanwhile
    assert read_all_cordons(await rig.there()) == {1: Cordon("fan")}
    later = Rig(client)
    await rig.edit("")
    await later.board.fetch()
    assert later.board.cordoned == 0
    await later.board.write(written(1))
    assert CORDONED not in (await rig.there()).metadata.annotations


async def test_the_reasons_of_cordons_outlast_a_deletion(rig: Rig, client: RecordingClient) -> None:
    await rig.board.write(written(1))
    await rig.cordon({1: Cordon("fan")})
    with pytest.raises(Conflict):
        await rig.board.write(written(1))
    await client.delete(CONFIG_MAPS, NAME, NAMESPACE)
    with pytest.raises(Conflict):
        await rig.board.write(written(1))
    await rig.board.write(written(1))
    assert read_cordons(await rig.there()) == {1: Cordon("fan")}


@pytest.mark.parametrize("text", ["{", "[]", '{"Ascend910-1": 1}'])
async def test_cordons_that_can_not_be_read_stay_and_separate_nothing(rig: Rig, text: str) -> None:
    await rig.board.write(written(1))
    await rig.annotate(text)
    with pytest.raises(Conflict):
        await rig.board.write(written(1))
    await rig.board.write(written(1))
    assert rig.edits == []
    assert (await rig.there()).metadata.annotations[CORDONED] == text


async def test_an_entry_that_names_no_chip_is_kept_and_reported_once(rig: Rig, client: RecordingClient) -> None:
    await rig.board.write(written(1))
    await rig.edit("Ascend910-x, Ascend910-7,all of them,Ascend910-x")
    with pytest.raises(Conflict):
        await rig.board.write(written(1))
    assert (rig.edits, rig.slips) == ([(0x80, 0b10)], [("Ascend910-x", "all of them")])
    for chips in ((7,), ()):
        await rig.board.write(written(*chips))
        listed = [f"Ascend910-{chip_id}" for chip_id in chips]
        assert (await rig.there()).data["ManuallySeparateNPU"] == ",".join([*listed, "Ascend910-x", "all of them"])
    later = Rig(client)
    await later.board.fetch()
    await later.board.write(written(3))
    assert (await rig.there()).data["ManuallySeparateNPU"] == "Ascend910-3,Ascend910-x,all of them"
    await rig.edit("Ascend910-3,all of them")
    with pytest.raises(Conflict):
        await later.board.write(written(3))
    await later.board.write(written(3))
    assert (await rig.there()).data["ManuallySeparateNPU"] == "Ascend910-3,all of them"
    assert (later.edits, later.slips) == ([], [("Ascend910-x", "all of them")])


async def test_the_watch_reports_edits_at_once_but_not_own_writes(rig: Rig) -> None:
    await rig.board.write(written())
    watch = rig.board.watch()
    async with running(watch.run()):
        await watch.synced.wait()
        for number in range(5):
            await rig.board.write(written(number))
        await rig.edit("Ascend910-4,Ascend910-6")
        await until(lambda: rig.edits)
        assert rig.edits == [(0b100_0000, 0)]
        await rig.board.write(written(4, 6))
        await rig.edit("Ascend910-6")
        await until(lambda: len(rig.edits) == 2)
        assert rig.edits[1] == (0, 0b1_0000)


async def test_a_change_of_other_keys_is_not_an_edit(rig: Rig, client: RecordingClient) -> None:
    await rig.board.write(written(1))
    await client.patch(CONFIG_MAPS, NAME, {"data": {"theirs": "x"}}, namespace=NAMESPACE)
    with pytest.raises(Conflict):
        await rig.board.write(written(1))
    await rig.board.write(written(1))
    assert rig.edits == []
    assert (await rig.there()).data["theirs"] == "x"


async def test_a_deletion_is_noticed_and_releases_no_chip(rig: Rig, client: RecordingClient) -> None:
    await rig.board.write(written(1))
    watch = rig.board.watch()
    async with running(watch.run()):
        await watch.synced.wait()
        await client.delete(CONFIG_MAPS, NAME, NAMESPACE)
        await until(lambda: rig.board.lost.version == 1)
        await rig.board.write(written(1))
    assert rig.edits == []
    assert (await rig.there()).data == written(1)


async def test_an_unseen_deletion_is_a_conflict_and_then_repaired(rig: Rig, client: RecordingClient) -> None:
    await rig.board.write(written(1))
    await client.delete(CONFIG_MAPS, NAME, NAMESPACE)
    with pytest.raises(Conflict):
        await rig.board.write(written(1))
    await rig.board.write(written(1))
    assert (await rig.there()).data == written(1)


async def test_a_config_map_created_by_somebody_else_is_taken_over(rig: Rig, client: RecordingClient) -> None:
    await rig.board.fetch()
    await Rig(client).board.write(written(2))
    with pytest.raises(Conflict):
        await rig.board.write(written())
    assert rig.edits == [(0b100, 0)]
    await rig.board.write(written(2))


async def test_a_write_whose_answer_was_lost_is_repeated(rig: Rig, server: ApiServer) -> None:
    await rig.board.write(written())
    server.lose_answer("PATCH", "/configmaps/")
    with pytest.raises(Exception, match="configmaps"):
        await rig.board.write(written(1))
    with pytest.raises(Conflict):
        await rig.board.write(written(1))
    await rig.board.write(written(1))
    assert (await rig.there()).data == written(1)
