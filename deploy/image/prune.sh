#!/bin/sh
# Removes from the image's environment ($1) what none of its programs uses.
set -eu
site=$(echo "$1"/lib/python3*/site-packages)
# Models and clients of every API, 110 MB. The library imports each one at its first use; ours are in ascend/kube, and of
# this library we use the reading of kubeconfigs and quantities.
for part in client aio/client; do
  find "$site/kubernetes/$part/api" "$site/kubernetes/$part/models" -type f ! -name '__init__*' -delete
done
# Test suites, and what compilers and type checkers read.
find "$site" -type d \( -name tests -o -name test \) -prune -exec rm -r {} +
find "$site" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.h' \) -delete
# Symbols for debuggers, 24 MB. A strip that does not know the platform leaves the files as they are.
if command -v strip > /dev/null; then
  find "$site" -type f -name '*.so' -exec sh -c 'strip "$@" 2> /dev/null || true' strip {} +
fi
