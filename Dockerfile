# One image with all programs: ascend-allocator, ascend-device-plugin and npuctl.
#
#   docker build -t registry.example/ascend-affinity:0.1.0 .

FROM python:3.11-slim AS build
RUN pip install --no-cache-dir "uv>=0.11"
# The interpreter of the image: the final stage has it at the same path.
ENV UV_PROJECT_ENVIRONMENT=/opt/ascend-affinity \
    UV_PYTHON=/usr/local/bin/python3.11 \
    UV_PYTHON_DOWNLOADS=never \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1
WORKDIR /src
# The dependencies are a separate layer, which is rebuilt only when the lock file changes.
COPY pyproject.toml uv.lock ./
# The lock file includes the sandbox, so uv needs its pyproject.toml. The image does not contain the sandbox.
COPY sandbox/pyproject.toml sandbox/
RUN uv sync --locked --no-dev --no-editable --no-install-project
COPY README.md LICENSE ./
COPY protos/ protos/
COPY ascend/ ascend/
COPY device_plugin/ device_plugin/
COPY allocator/ allocator/
COPY npuctl/ npuctl/
RUN uv sync --locked --no-dev --no-editable

# Only the environment: no compiler, no uv, no sources.
FROM python:3.11-slim
# The build system adds --label org.opencontainers.image.source=… and .revision=…
LABEL org.opencontainers.image.title="ascend-affinity" \
      org.opencontainers.image.description="Device plugin and affinity allocator for Huawei Ascend NPUs on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"

COPY --from=build /opt/ascend-affinity /opt/ascend-affinity
# The root file system is read-only in the cluster, so no bytecode can be written at run time.
ENV PATH=/opt/ascend-affinity/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# An unprivileged user. Only the device plugin's DaemonSet runs as root, which the kubelet's folders require.
USER 65532:65532
# No ENTRYPOINT: the command of the container names the program, ascend-allocator or ascend-device-plugin.
CMD ["ascend-allocator"]
