"""What can be set: by flag, environment (``ASCEND_ALLOCATOR_…``) or YAML file, in this order of precedence."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, YamlConfigSettingsSource

from ascend.errors import InvalidValue
from ascend.observe.probes import split_address

ENV_PREFIX = "ASCEND_ALLOCATOR_"


def _http_address(text: str) -> str:
    try:
        split_address(text)
    except InvalidValue as error:
        raise ValueError(str(error)) from error
    return text


def _grpc_address(text: str) -> str:
    return text if text.startswith("unix:") else _http_address(text)


class Settings(BaseSettings):
    """Settings of the allocator."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        cli_prog_name="ascend-allocator",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        extra="forbid",
    )
    yaml_file: ClassVar[Path | None] = None
    """The file ``load_settings`` found on the command line or in the environment."""

    config: Path | None = Field(None, description="YAML file with settings, named as here but with underscores")
    kubeconfig: Path | None = Field(
        None, description="kubeconfig file; without it $KUBECONFIG or the pod's own identity"
    )
    extender_address: Annotated[str, AfterValidator(_http_address)] = Field(
        "0.0.0.0:8080",
        description="where the extender, probes and metrics are served",
    )
    grpc_address: Annotated[str, AfterValidator(_grpc_address)] = Field(
        "127.0.0.1:50051", description="where ascend.allocator.v1 is served: host:port or unix:<path>"
    )
    reservation_ttl_s: float = Field(30.0, gt=0, description="how long chips are kept for a pod nobody binds, seconds")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least serious level logged")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags come first of themselves; then environment, then the file."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, yaml_file=cls.yaml_file)
