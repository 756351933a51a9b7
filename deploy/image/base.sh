#!/bin/sh
# Makes a base for the image from Debian's packages, and writes its root file system as a tar archive:
#
#   deploy/image/base.sh base.tar [amd64|arm64]        Python, its libraries, certificate authorities: 60 MB, no package manager
#   deploy/image/base.sh --build build.tar             with what the build stage runs: a shell, venv, strip
#
# libstdc++ is for the wheels with C++ in them, and for Huawei's library.
# `docker import base.tar registry.example/python:3.11` or `buildah add` makes an image of it. It needs mmdebstrap. The same
# packages give the same archive, byte for byte.
set -eu
suite=bookworm
if [ "$1" = --build ]; then
  exec mmdebstrap --quiet --variant=minbase --include=python3.11-venv,binutils "$suite" "$2"
fi
# Only unpacked: nothing of it runs here, so that it can be made for another platform.
# shellcheck disable=SC2016 # the hook's shell expands $1
exec mmdebstrap --quiet --variant=extract --include=base-files,netbase,ca-certificates,tzdata,python3.11,libstdc++6 \
  --architectures="${2:-$(dpkg --print-architecture)}" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --extract-hook='ln -s python3.11 "$1/usr/bin/python3"' \
  --extract-hook='cat "$1"/usr/share/ca-certificates/mozilla/*.crt > "$1/etc/ssl/certs/ca-certificates.crt"' \
  --extract-hook='printf "%s\n" root:x:0:0:root:/root:/sbin/nologin nonroot:x:65532:65532:nonroot:/:/sbin/nologin > "$1/etc/passwd"' \
  --extract-hook='printf "%s\n" root:x:0: nonroot:x:65532: > "$1/etc/group"' \
  --extract-hook='python3.11 -m compileall -q --invalidation-mode unchecked-hash -s "$1" -p / "$1/usr/lib/python3.11"' \
  "$suite" "$1"
