"""Reads a program's settings from flags, environment variables and a YAML file, in this order of precedence.

``--config FILE`` (or the variable ``<PREFIX>CONFIG``) names the file. All errors are reported at once.
"""

import argparse
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from ascend.addresses import split_address
from ascend.daemon.setting import setting, settings_of
from ascend.errors import UNREADABLE, InvalidValue
from ascend.printable import shown

DISTRIBUTION: Final = "ascend-affinity"
"""The package whose version is the version of all programs."""


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """The settings of a program: a dataclass, in which each field is a ``setting``.

    ``SettingsSource`` and ``fixed_settings`` check the value of each; the constructor does not. Rules for several
    settings are checked by ``__post_init__``, which raises InvalidValue with a sentence that names them.
    """

    prefix: ClassVar[str] = ""
    """Of the environment variables."""

    ignores_unknown: ClassVar[bool] = False
    """Whether the file may have settings of another program."""


@dataclass(frozen=True, kw_only=True)
class DaemonSettings(ProgramSettings):
    """The settings that every daemon has."""

    kubeconfig: str | None = setting(
        default=None, description="the path of a kubeconfig; the pod's service account if not given"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = setting(
        default="INFO", description="the lowest level that is logged", parse=str.upper, reloaded=True
    )


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of certificates; PEM.

    Attributes:
        cert: our certificate with its intermediate certificates.
        key: its private key.
        client_ca: the authority that client certificates are verified by; None if clients need no certificate.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All paths."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


def checked_address(text: str) -> str:
    """Return the text if it is an address to listen on: host and port; port 0 selects a free one.

    Raises:
        InvalidValue: it is not.
    """
    split_address(text)
    return text


POLL_S: Final = 2.0
"""Seconds between checks of files that may change."""

FileIdentity = tuple[int, int, int, int] | None
"""What differs after a file has changed; None while there is no file."""


def file_identity(path: Path) -> FileIdentity:
    """Return the identity of a file, for one ``stat``."""
    # Follows links: the kubelet updates a mounted ConfigMap or Secret by changing a symbolic link.
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


S = TypeVar("S", bound=ProgramSettings)


class SettingsSource(Generic[S]):
    """The sources of a program's settings. They can be read again.

    Args:
        kind: the class of the settings.
        program: the program's name, for the help text.
        arguments: the command line without the program; ``sys.argv`` if not given.
    """

    def __init__(self, kind: type[S], program: str, arguments: Sequence[str] | None = None) -> None:
        self._kind = kind
        self._program = program
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("--config", default=os.environ.get(f"{kind.prefix}CONFIG"))
        found, self._flags = finder.parse_known_args(list(sys.argv[1:] if arguments is None else arguments))
        self.file = Path(found.config) if found.config else None
        """The settings file, the only source that can change while the program runs."""
        self._seen: FileIdentity = None

    def has_changed(self) -> bool:
        """Return whether the file has changed since it was last read; costs one ``stat``."""
        return self._identity() != self._seen

    def read(self) -> S:
        """Return the current settings.

        Raises:
            InvalidValue: a setting is wrong; the message has a line for each.
            SystemExit: the flags request help or the version, or one of them is unknown.
        """
        flags = self._read_flags()
        self._seen = self._identity()  # before the file is read, so that a later change is noticed
        try:
            from_file = _read_file(self.file) if self.file is not None else {}
        except InvalidValue as error:
            if isinstance(error.__cause__, OSError):
                self._seen = None  # it says nothing of the file; there may be no descriptor for it
            raise
        return _checked(self._kind, from_file | _read_environment(self._kind) | flags)

    def _read_flags(self) -> dict[str, object]:
        parser = argparse.ArgumentParser(
            prog=self._program,
            usage="%(prog)s [--FLAG VALUE]...",  # the flags fill a screen, on which no error would be seen
            description=self._kind.__doc__,
            allow_abbrev=False,
        )
        parser.add_argument("--config", metavar="FILE", help="a YAML file with the same settings")
        parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
        settings = settings_of(self._kind)
        for name, option in settings.items():
            parser.add_argument(
                _flag(name),
                dest=name,
                action="append" if option.is_list else "store",
                metavar=option.shown_kind,
                help=option.help.replace("%", "%%"),
            )
        found = vars(parser.parse_args(self._flags))
        given = {name: found[name] for name in settings if found[name] is not None}
        return {name: _listed(value, name) if settings[name].is_list else value for name, value in given.items()}

    def _identity(self) -> FileIdentity:
        return file_identity(self.file) if self.file is not None else None


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_flag: object) -> None:
        from importlib.metadata import version  # a daemon does not need it

        sys.stdout.write(f"{parser.prog} {version(DISTRIBUTION)}\n")
        parser.exit()


def fixed_settings(kind: type[S], file: Path | None, values: Mapping[str, object]) -> S:
    """Read settings from a YAML file and from values, which take precedence, but not from the environment.

    Keys may have dashes; of the values, a list may be written as on a command line.

    Raises:
        InvalidValue: a setting is wrong; the message has a line for each.
    """
    given = {key.replace("-", "_"): value for key, value in (_read_file(file) if file is not None else {}).items()}
    settings = settings_of(kind)
    for key, value in values.items():
        name = key.replace("-", "_")
        is_text = isinstance(value, str) and name in settings and settings[name].is_list
        given[name] = _listed([str(value)], name) if is_text else value
    return _checked(kind, given)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read_environment(kind: type[ProgramSettings]) -> dict[str, object]:
    given: dict[str, object] = {}
    for name, option in settings_of(kind).items():
        variable = f"{kind.prefix}{name}".upper()
        if (text := os.environ.get(variable)) is not None:
            given[name] = _decoded(text, f"the variable {variable}") if option.is_list else text
    return given


def _listed(texts: list[str], name: str) -> object:
    """Return the list for a flag that may be repeated, each time with JSON or texts with commas between them."""
    items: list[object] = []
    for text in texts:
        more = _decoded(text, _flag(name)) if text.startswith("[") else text.split(",")
        if isinstance(more, InvalidValue):
            return more
        items += more if isinstance(more, list) else [more]
    return items


def _decoded(text: str, what: str) -> object:
    """Return what JSON says; in place of the value an error, which is reported unless another source has the value."""
    try:
        return json.loads(text)
    except UNREADABLE:
        return InvalidValue(f'{what} must be JSON, like ["a", "b"]')


def _checked(kind: type[S], given: Mapping[str, object]) -> S:
    settings = settings_of(kind)
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for name, option in settings.items():
        if name in given:
            try:
                values[name] = option.convert(given[name])
            except InvalidValue as error:
                wrong.append(f"{error.message}{_hint(given[name], error.message)}")
        elif option.default is MISSING:
            wrong.append(f"{name}: must be given")
    if not kind.ignores_unknown:
        wrong += (
            f"{name}: {_unknown(name, settings)} (got {shown(given[name])})" for name in given if name not in settings
        )
    if not wrong:
        try:
            return kind(**values)
        except InvalidValue as error:
            wrong.append(error.message)
    raise InvalidValue("the settings are not valid:", more=wrong)


def _hint(value: object, problem: str) -> str:
    if isinstance(value, bool) and "'off'" in problem:
        return "; YAML reads on and off without quotes as true and false"
    return ""


def _unknown(name: str, known: Collection[str]) -> str:
    import difflib  # only a misspelt setting needs it

    similar = difflib.get_close_matches(name, known, n=1)
    return f"there is no such setting{f'; did you mean {similar[0]}?' if similar else ''}"


def _yaml(text: str) -> object:
    # Imported here: it takes 4 MiB of memory, and the chart's file is JSON, which is YAML too.
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from error


def _read_file(path: Path) -> dict[str, object]:
    try:
        text = path.read_text()
        try:
            content = json.loads(text)
        except json.JSONDecodeError:
            content = _yaml(text)
    except OSError as error:
        raise InvalidValue(f"--config: {path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise InvalidValue(f"--config: {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidValue(f"--config: {path}: a mapping of settings is expected, not {type(content).__name__}")
    return {str(key): value for key, value in content.items()}
