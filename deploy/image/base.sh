#!/bin/sh
# Makes a base for the image from Debian's packages, and writes its root file system as a tar archive:
#
#   deploy/image/base.sh base.tar [amd64|arm64]        Python, its libraries, certificate authorities: 60 MB, no package manager
#   deploy/image/base.sh --build build.tar             with what the build stage runs: a shell, venv, strip
#
# libstdc++ is for the wheels with C++ in them, and for Huawei's library.
# `docker import base.tar registry.example/python:3.13` or `buildah add` makes an image of it. It needs mmdebstrap. The same
# packages give the same archive, byte for byte.
set -eu
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-0}"
suite=trixie
python=python3.13
if [ "$1" = --build ]; then
  exec mmdebstrap --quiet --variant=minbase --include="$python-venv",binutils "$suite" "$2"
fi
# The same Python for this machine, which compiles the modules: the machine may have none, or another one.
tools=$(mktemp -d)
trap 'rm -r "$tools"' EXIT
mmdebstrap --quiet --variant=extract --include="$python" "$suite" - | tar -x --no-same-owner -C "$tools" --exclude='./dev/*'
chmod 755 "$tools"
libraries=$(dirname "$tools"/usr/lib/*/libc.so.6)
compile="PYTHONHOME=$tools/usr $(echo "$libraries"/ld-linux*.so.*) --library-path $libraries $tools/usr/bin/$python -m compileall"
# Only unpacked: nothing of it runs here, so that it can be made for another platform. So dpkg keeps no list of the
# packages, which those who look for known flaws in images read; it is written like dpkg's.
# shellcheck disable=SC2016 # the hook's shell expands $1
mmdebstrap --quiet --variant=extract --include=base-files,netbase,ca-certificates,tzdata,"$python",libstdc++6 \
  --architectures="${2:-$(dpkg --print-architecture)}" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --extract-hook="ln -s $python"' "$1/usr/bin/python3"' \
  --extract-hook='cat "$1"/usr/share/ca-certificates/mozilla/*.crt > "$1/etc/ssl/certs/ca-certificates.crt"' \
  --extract-hook='printf "%s\n" root:x:0:0:root:/root:/sbin/nologin nonroot:x:65532:65532:nonroot:/:/sbin/nologin > "$1/etc/passwd"' \
  --extract-hook='printf "%s\n" root:x:0: nonroot:x:65532: > "$1/etc/group"' \
  --extract-hook='for deb in "$1"/var/cache/apt/archives/*.deb; do dpkg-deb -f "$deb"; printf "Status: install ok installed\n\n"; done > "$1/var/lib/dpkg/status"' \
  --extract-hook="$compile"' -q --invalidation-mode unchecked-hash -s "$1" -p / "$1/usr/lib/'"$python"'"' \
  "$suite" "$1"
