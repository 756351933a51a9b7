#!/bin/sh
# Builds the image with labels that name its commit and its base:
#
#   deploy/image/build.sh registry.example/ascend-affinity:0.1.0 [option of the builder, as --platform linux/arm64 ...]
#
# BUILDER            docker (default), podman or buildah, with options
# BASE               the image with Python 3.13 (default: python:3.13-slim)
# BUILD_BASE         the one that also has venv, for the build stage (default: BASE)
# RELEASE=1          refuses a base without digest, and changes that are not committed
set -eu
cd "$(dirname "$0")/../.."
name=${1:?usage: deploy/image/build.sh NAME:TAG [option ...]}
shift
base=${BASE:-docker.io/library/python:3.13-slim}
build_base=${BUILD_BASE:-$base}
revision=$(git rev-parse HEAD)
changed=$(git status --porcelain)
if [ -n "${RELEASE:-}" ]; then
  for each in "$base" "$build_base"; do
    case $each in
      *@sha256:*) ;;
      *) echo "a release names its base by digest: $each has none (BASE=<name>@sha256:<digest>)" >&2; exit 1 ;;
    esac
  done
  if [ -n "$changed" ]; then
    printf 'a release is built from a commit, but these files differ:\n%s\n' "$changed" >&2
    exit 1
  fi
fi
set -- "$@" \
  --label "org.opencontainers.image.revision=$revision${changed:+-modified}" \
  --label "org.opencontainers.image.created=$(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)" \
  --label "org.opencontainers.image.base.name=${base%@*}"
case $base in
  *@*) set -- "$@" --label "org.opencontainers.image.base.digest=${base#*@}" ;;
esac
# The repository's address, without a password in it.
if source=$(git remote get-url origin 2> /dev/null | sed -n 's|^https://\([^@/]*@\)\{0,1\}|https://|p') && [ -n "$source" ]; then
  set -- "$@" --label "org.opencontainers.image.source=$source"
fi
# shellcheck disable=SC2086 # the builder may have options
exec ${BUILDER:-docker} build --tag "$name" --build-arg "BASE=$base" --build-arg "BUILD_BASE=$build_base" "$@" .
