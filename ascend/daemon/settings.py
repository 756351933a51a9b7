"""Reads a program's settings from flags, environment variables and a YAML file, in this order of precedence.

``--config FILE`` (or the variable ``<PREFIX>CONFIG``) names the file. All errors are reported at once.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from ascend.addresses import split_address
from ascend.errors import InvalidValue
from ascend.grammar import a

S = TypeVar("S", bound=BaseSettings)

DISTRIBUTION: Final = "ascend-affinity"
"""The package whose version is the version of all programs."""

RELOADED: Final[dict[str, Any]] = {"reload": True}
"""The ``json_schema_extra`` of a field whose changes apply while the program runs; all others need a restart."""


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class DaemonSettings(BaseSettings):
    """The settings that every daemon has."""

    kubeconfig: str | None = Field(
        default=None, description="the path of a kubeconfig; the pod's service account if not given"
    )
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] = Field(
        default="INFO", description="the lowest level that is logged", json_schema_extra=RELOADED
    )


def checked_address(text: str) -> str:
    """Return the text if it is an address to listen on; a validator for pydantic.

    Raises:
        ValueError: it is not.
    """
    try:
        split_address(text)
    except InvalidValue as error:
        raise ValueError(str(error)) from error
    return text


Address = Annotated[str, AfterValidator(checked_address)]
"""Host and port to listen on, like ``0.0.0.0:8080``; port 0 selects a free one."""

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


class SettingsSource(Generic[S]):
    """The sources of a program's settings. They can be read again.

    Args:
        kind: the class of the settings; its ``model_config`` has the prefix of environment variables.
        program: the program's name, for the help text.
        arguments: the command line without the program; ``sys.argv`` if not given.
        options: further flags, for the help text; the caller has removed them from the arguments.
    """

    def __init__(
        self,
        kind: type[S],
        program: str,
        arguments: Sequence[str] | None = None,
        *,
        options: argparse.ArgumentParser | None = None,
    ) -> None:
        self._kind = kind
        self._program = program
        self._options = [options] if options is not None else []
        prefix = kind.model_config.get("env_prefix", "")
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("--config", default=os.environ.get(f"{prefix}CONFIG"))
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
        program, flags, options = self._program, self._flags, self._options
        self._seen = self._identity()  # before the file is read, so that a later change is noticed
        from_file = _read_file(self.file) if self.file is not None else {}

        def sources(settings_cls: type[BaseSettings]) -> tuple[PydanticBaseSettingsSource, ...]:
            parser = argparse.ArgumentParser(
                prog=program, description=settings_cls.__doc__, allow_abbrev=False, parents=options
            )
            parser.add_argument("--config", metavar="FILE", help="a YAML file with the same settings")
            shown = f"{program} {version(DISTRIBUTION)}"
            parser.add_argument("--version", action="version", version=shown, help="show the version and exit")
            cli: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(
                settings_cls, cli_parse_args=flags, cli_kebab_case=True, root_parser=parser, cli_hide_none_type=True
            )
            return cli, EnvSettingsSource(settings_cls), InitSettingsSource(settings_cls, from_file)

        return _read(self._kind, program, sources)

    def _identity(self) -> FileIdentity:
        return file_identity(self.file) if self.file is not None else None


def fixed_settings(kind: type[S], file: Path | None, values: Mapping[str, object]) -> S:
    """Read settings from a YAML file and from values, which take precedence, but not from the environment.

    Keys may have dashes.

    Raises:
        InvalidValue: a setting is wrong; the message has a line for each.
    """
    from_file = _read_file(file) if file is not None else {}
    merged = {key.replace("-", "_"): value for key, value in (*from_file.items(), *values.items())}
    return _read(kind, "", lambda settings_cls: (InitSettingsSource(settings_cls, merged),))


def _read(
    kind: type[S], program: str, sources: Callable[[type[BaseSettings]], tuple[PydanticBaseSettingsSource, ...]]
) -> S:
    class Sourced(kind):  # type: ignore[valid-type,misc]  # its sources differ from call to call
        model_config = SettingsConfigDict(cli_prog_name=program)

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], **_sources: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return sources(settings_cls)

    Sourced.__doc__ = kind.__doc__
    try:
        return Sourced()
    except ValidationError as error:
        raise _invalid(error, kind.model_fields) from error
    except SettingsError as error:
        raise _undecodable(error, kind) from error


_INVALID: Final = "the settings are not valid:"
_TYPE = re.compile(r"Input should be a valid (?P<type>\w+).*", re.DOTALL)


def _invalid(error: ValidationError, fields: Collection[str]) -> InvalidValue:
    lines = [_INVALID]
    for each in error.errors():
        field = ".".join(map(str, each["loc"]))
        if each["type"] == "value_error":
            sentence = str(each["ctx"]["error"])
        elif each["type"] == "extra_forbidden":
            import difflib  # only a misspelt setting needs it

            similar = difflib.get_close_matches(field, fields, n=1)
            sentence = f"there is no such setting{f'; did you mean {similar[0]}?' if similar else ''}"
        else:
            sentence = _sentence(each["msg"])
        # A validator of several fields names them itself, and its input is all settings.
        given = f" (got {each['input']!r})" if each["type"] != "missing" else ""
        lines.append(f"  {field}: {sentence}{given}" if field else f"  {sentence}")
    return InvalidValue("\n".join(lines))


def _sentence(message: str) -> str:
    """Return a message of pydantic as the end of a sentence about a setting."""
    if message == "Field required":
        return "must be given"
    if wrong_type := _TYPE.fullmatch(message):
        return "must be true or false" if wrong_type["type"] == "boolean" else f"must be {a(wrong_type['type'])}"
    return re.sub("^(Input|String) should", "must", message)


def _undecodable(error: SettingsError, kind: type[BaseSettings]) -> InvalidValue:
    found = re.search(r'field "(\w+)"', str(error))
    if found is None:
        return InvalidValue(f"{_INVALID}\n  {error}")
    variable = f"{kind.model_config.get('env_prefix', '')}{found[1]}".upper()
    return InvalidValue(f'{_INVALID}\n  {found[1]}: the variable {variable} must be JSON, like ["a", "b"]')


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
    except ValueError as error:
        raise InvalidValue(f"--config: {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidValue(f"--config: {path}: a mapping of settings is expected, not {type(content).__name__}")
    return {str(key): value for key, value in content.items()}
