"""How both programs read their settings: flags, then environment, then a YAML file, then defaults.

``--config FILE`` (or the variable ``<PREFIX>CONFIG``) names the file. All that is wrong is told at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

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

from ascend.errors import InvalidValue
from ascend.observe.probes import split_address

S = TypeVar("S", bound=BaseSettings)


class DaemonSettings(BaseSettings):
    """What every daemon's settings have."""

    kubeconfig: str | None = Field(default=None, description="a kubeconfig file; the pod's own identity if not given")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="least level logged")


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


def read_settings(kind: type[S], program: str, arguments: Sequence[str] | None = None) -> S:
    """The settings of a program.

    Args:
        kind: what to read; its ``model_config`` has the prefix of environment variables.
        program: the program's name, for the help text.
        arguments: the command line without the program; ``sys.argv`` if not given.

    Raises:
        InvalidValue: something is wrong; the message has a line for each.
        SystemExit: help was asked for, or a flag is unknown.
    """
    flags = list(sys.argv[1:] if arguments is None else arguments)
    prefix = kind.model_config.get("env_prefix", "")
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", default=os.environ.get(f"{prefix}CONFIG"))
    found, flags = finder.parse_known_args(flags)
    from_file = _read_file(Path(found.config)) if found.config else {}

    class Sourced(kind):  # type: ignore[valid-type,misc]  # what is read differs from call to call
        model_config = SettingsConfigDict(cli_prog_name=program)

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], **_sources: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            parser = argparse.ArgumentParser(prog=program, description=kind.__doc__, allow_abbrev=False)
            parser.add_argument("--config", metavar="FILE", help="a YAML file with the same settings")
            cli: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(
                settings_cls, cli_parse_args=flags, cli_kebab_case=True, root_parser=parser, cli_hide_none_type=True
            )
            return cli, EnvSettingsSource(settings_cls), InitSettingsSource(settings_cls, from_file)

    try:
        return Sourced()
    except ValidationError as error:
        lines = ["the settings are not valid:"]
        for each in error.errors():
            field = ".".join(map(str, each["loc"])) or "settings"
            lines.append(f"  {field}: {each['msg']} (got {each['input']!r})")
        raise InvalidValue("\n".join(lines)) from error


def _read_file(path: Path) -> dict[str, object]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise InvalidValue(f"--config: {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidValue(f"--config: {path}: a mapping of settings is expected, not {type(content).__name__}")
    return content
