"""How both programs read their settings: flags, then environment, then a YAML file, then defaults.

``--config FILE`` (or the variable ``<PREFIX>CONFIG``) names the file. All that is wrong is told at once.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import yaml
from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from ascend.addresses import split_address
from ascend.errors import InvalidValue

S = TypeVar("S", bound=BaseSettings)

RELOADED: Final[dict[str, Any]] = {"reload": True}
"""Marks a field (as its ``json_schema_extra``) that takes effect while the program runs; all others need a restart."""


class DaemonSettings(BaseSettings):
    """What every daemon's settings have."""

    kubeconfig: str | None = Field(default=None, description="a kubeconfig file; the pod's own identity if not given")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="least level logged", json_schema_extra=RELOADED
    )


def checked_address(text: str) -> str:
    """The text, if it is an address to listen on; a validator for pydantic.

    Raises:
        ValueError: it is none.
    """
    try:
        split_address(text)
    except InvalidValue as error:
        raise ValueError(str(error)) from error
    return text


Address = Annotated[str, AfterValidator(checked_address)]
"""Host and port to listen on, as in ``0.0.0.0:8080``; port 0 takes a free one."""


_Identity = tuple[int, int, int, int]


class SettingsSource(Generic[S]):
    """Where the settings of a program come from; they can be read again.

    Args:
        kind: what to read; its ``model_config`` has the prefix of environment variables.
        program: the program's name, for the help text.
        arguments: the command line without the program; ``sys.argv`` if not given.
        options: further flags, for the help text; they have been taken out of the arguments.
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
        """The file among them; it alone can change while the program runs."""
        self._seen: _Identity | None = None

    def has_changed(self) -> bool:
        """Whether the file is another one than was read last; one ``stat``."""
        return _identity(self.file) != self._seen

    def read(self) -> S:
        """The settings as they are now.

        Raises:
            InvalidValue: something is wrong; the message has a line for each.
            SystemExit: help was asked for, or a flag is unknown.
        """
        program, flags, options = self._program, self._flags, self._options
        self._seen = _identity(self.file)  # before it is read: a change meanwhile is one more change
        from_file = _read_file(self.file) if self.file is not None else {}

        class Sourced(self._kind):  # type: ignore[name-defined,misc]  # what is read differs from call to call
            model_config = SettingsConfigDict(cli_prog_name=program)

            @classmethod
            def settings_customise_sources(
                cls, settings_cls: type[BaseSettings], **_sources: PydanticBaseSettingsSource
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                parser = argparse.ArgumentParser(
                    prog=program, description=cls.__doc__, allow_abbrev=False, parents=options
                )
                parser.add_argument("--config", metavar="FILE", help="a YAML file with the same settings")
                cli: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(
                    settings_cls, cli_parse_args=flags, cli_kebab_case=True, root_parser=parser, cli_hide_none_type=True
                )
                return cli, EnvSettingsSource(settings_cls), InitSettingsSource(settings_cls, from_file)

        Sourced.__doc__ = self._kind.__doc__
        try:
            return Sourced()
        except ValidationError as error:
            raise _told(error) from error


def read_settings(kind: type[S], program: str, arguments: Sequence[str] | None = None) -> S:
    """The settings of a program, read once.

    Args:
        kind: what to read.
        program: the program's name, for the help text.
        arguments: the command line without the program; ``sys.argv`` if not given.

    Raises:
        InvalidValue: something is wrong; the message has a line for each.
        SystemExit: help was asked for, or a flag is unknown.
    """
    return SettingsSource(kind, program, arguments).read()


def fixed_settings(kind: type[S], file: Path | None, values: Mapping[str, object]) -> S:
    """Settings from a file and from values alone, whatever the environment says; keys may have dashes.

    Args:
        kind: what to read.
        file: a YAML file; none, if None.
        values: these go before what the file says.

    Raises:
        InvalidValue: something is wrong; the message has a line for each.
    """

    class Fixed(kind):  # type: ignore[valid-type,misc]  # what is read differs from call to call
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], **sources: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del settings_cls
            return (sources["init_settings"],)

    from_file = _read_file(file) if file is not None else {}
    merged = {str(key).replace("-", "_"): value for key, value in (*from_file.items(), *values.items())}
    try:
        return Fixed(**merged)
    except ValidationError as error:
        raise _told(error) from error


def _told(error: ValidationError) -> InvalidValue:
    lines = ["the settings are not valid:"]
    for each in error.errors():
        field = ".".join(map(str, each["loc"])) or "settings"
        # What concerns several fields has all of them as its input.
        got = f" (got {each['input']!r})" if each["loc"] else ""
        lines.append(f"  {field}: {each['msg']}{got}")
    return InvalidValue("\n".join(lines))


def _identity(path: Path | None) -> _Identity | None:
    # Follows links: the kubelet changes a mounted ConfigMap by pointing a link elsewhere.
    try:
        stat = path.stat() if path is not None else None
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size) if stat is not None else None


def _read_file(path: Path) -> dict[str, object]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidValue(f"--config: {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidValue(f"--config: {path}: a mapping of settings is expected, not {type(content).__name__}")
    return content
