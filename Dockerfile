# One image with all programs: ascend-allocator, ascend-device-plugin and npuctl, for linux/amd64 and linux/arm64.
#
#   deploy/image/build.sh registry.example/ascend-affinity:0.1.0      (docs/install.md#the-image)
#   docker build -t registry.example/ascend-affinity:0.1.0 .          (the same without labels of the commit)

# The base has Python 3.13 on its PATH and nothing else is used of it; deploy/image/base.sh makes a small one. Releases
# name it by its digest, which build.sh demands of them. BUILD_BASE has the same Python at the same path, and venv.
ARG BASE=docker.io/library/python:3.13-slim
ARG BUILD_BASE=docker.io/library/python:3.13-slim
ARG BUILDPLATFORM

# On the platform of the machine that builds, also for another one: nothing is compiled, wheels are only unpacked.
FROM --platform=${BUILDPLATFORM} ${BUILD_BASE} AS build
ARG UV_VERSION=0.13.9
RUN python3.13 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check "uv==${UV_VERSION}"
# Only the interpreter of the image: the final stage has it at the same path. Byte code is found valid by its name, not
# by its source's time: builders may set all times to one.
ENV UV_PROJECT_ENVIRONMENT=/opt/ascend-affinity \
    UV_PYTHON=python3.13 \
    UV_PYTHON_DOWNLOADS=never \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH \
    PATH=/opt/uv/bin:$PATH
WORKDIR /src
COPY deploy/image/prune.sh deploy/image/notices.py deploy/image/
# The dependencies are a layer of their own, which changes only with the lock file: an upgrade pulls a few MB.
COPY pyproject.toml uv.lock ./
# The lock file covers the sandbox too, so uv needs its metadata. The sandbox itself is not in the image.
COPY sandbox/pyproject.toml sandbox/
ARG TARGETARCH
RUN case "${TARGETARCH:-$(uname -m)}" in \
      amd64 | x86_64) echo x86_64-unknown-linux-gnu ;; \
      arm64 | aarch64) echo aarch64-unknown-linux-gnu ;; \
      *) echo "no wheels are locked for ${TARGETARCH:-$(uname -m)}" >&2; exit 1 ;; \
    esac > /tmp/platform
RUN uv sync --locked --no-dev --extra programs --extra web --no-editable --no-install-project --python-platform "$(cat /tmp/platform)" \
 && sh deploy/image/prune.sh /opt/ascend-affinity
# What the image contains, from the lock file (CycloneDX); without serial number and time, so that it is reproducible.
# Beside it the licences of these packages.
RUN mkdir -p /opt/ascend-affinity/share \
 && uv export --quiet --locked --no-dev --extra programs --extra web --no-editable --preview-features sbom-export --format cyclonedx1.5 \
  | grep -v -e '^  "serialNumber":' -e '^    "timestamp":' > /opt/ascend-affinity/share/sbom.cdx.json \
 && python3.13 deploy/image/notices.py /opt/ascend-affinity/lib/python3.13/site-packages \
  > /opt/ascend-affinity/share/THIRD-PARTY-NOTICES.txt
COPY README.md LICENSE ./
COPY protos/ protos/
COPY ascend/ ascend/
COPY device_plugin/ device_plugin/
COPY allocator/ allocator/
COPY npuctl/ npuctl/
# The programs go to a folder of their own, with the paths that they have in the environment.
RUN cp -a /opt/ascend-affinity /opt/dependencies \
 && uv sync --locked --no-dev --extra programs --extra web --no-editable --refresh-package ascend-affinity \
      --python-platform "$(cat /tmp/platform)" \
 && sh deploy/image/prune.sh /opt/ascend-affinity \
 && mkdir /opt/programs && cd /opt/ascend-affinity \
 && diff -rq --no-dereference . /opt/dependencies | sed -n 's|^Only in \./*\([^:]*\): |\1/|p' | sed 's|^/||' > /tmp/added \
 && tar -c -T /tmp/added | tar -x -C /opt/programs

# Only the environment: no compiler, no pip, no uv, no sources.
FROM ${BASE}
# deploy/image/build.sh adds source, revision and created, and the base's name and digest.
LABEL org.opencontainers.image.title="ascend-affinity" \
      org.opencontainers.image.description="Device plugin and affinity allocator for Huawei Ascend NPUs on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"

COPY --from=build /opt/dependencies /opt/ascend-affinity
COPY --from=build /opt/programs /opt/ascend-affinity
# The root file system is read-only in the cluster, so nothing can be compiled or written at run time.
ENV PATH=/opt/ascend-affinity/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# An unprivileged user. Only the device plugin's DaemonSet runs as root, because only root can access the kubelet's folders.
USER 65532:65532
# No ENTRYPOINT: the command names the program, ascend-allocator or ascend-device-plugin.
CMD ["ascend-allocator"]
