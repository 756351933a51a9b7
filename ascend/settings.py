"""How both programs read their settings: flags, then environment, then a YAML file, then defaults.

All that is wrong is told at once, naming field and value, and the process ends with status 2.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    YamlConfigSettingsSource,
)

from ascend.errors import InvalidValue

S = TypeVar("S", bound=BaseSettings)


def read_settings(kind: type[S], program: str, arguments: Sequence[str] | None = None) -> S:
    """The settings of a program; ``--config FILE`` names the YAML file.

    Args:
        kind: what to read; its ``model_config`` has the prefix of environment variables.
        program: the program's name, for the help text.
        arguments: the command line without the program; ``sys.argv`` if not given.

    Raises:
        InvalidValue: something is wrong; the message has a line for each.
        SystemExit: help was asked for, or a flag is unknown.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    early = argparse.ArgumentParser(add_help=False)
    early.add_argument("--config")
    file, flags = early.parse_known_args(given)

    class Sourced(kind):  # type: ignore[valid-type,misc]  # the sources differ from call to call
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            parser = argparse.ArgumentParser(prog=program, description=kind.__doc__, allow_abbrev=False)
            parser.add_argument("--config", metavar="FILE", help="a YAML file with the same settings")
            cli: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(
                settings_cls, cli_parse_args=flags, cli_kebab_case=True, root_parser=parser, cli_hide_none_type=True
            )
            sources = (cli, env_settings)
            return (*sources, YamlConfigSettingsSource(settings_cls, file.config)) if file.config else sources

    try:
        return Sourced()
    except ValidationError as error:
        lines = ["the settings are not valid:"]
        for each in error.errors():
            field = ".".join(map(str, each["loc"]))
            lines.append(f"  {field}: {each['msg']} (got {each['input']!r})")
        raise InvalidValue("\n".join(lines)) from error
    except OSError as error:
        raise InvalidValue(f"the settings file can't be read: {error}") from error
