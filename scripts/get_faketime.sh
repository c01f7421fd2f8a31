#!/usr/bin/env bash
# Fetch libfaketime for the tests of servers whose clock is wrong, from Debian's package into the user's cache, without
# installing it. Does nothing if it is installed or there already.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/aioelect/faketime
if [ -e "$cache/libfaketime.so.1" ] || compgen -G "/usr/lib/*/faketime/libfaketime.so.1" >/dev/null; then
  echo "libfaketime is there"
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "libfaketime can't be fetched: this is no Debian. Install the package faketime of your system." >&2
  echo "The tests run without it; those of wrong clocks are skipped." >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo "Fetching libfaketime"
if ! apt-get download -qq libfaketime 2>log; then
  apt-get update -qq # needs rights; a list of packages may simply not be there yet
  apt-get download -qq libfaketime 2>log || { cat log >&2 && exit 1; }
fi
dpkg-deb --extract libfaketime_*.deb files
mkdir -p "$(dirname "$cache")"
rm -rf "$cache.$$"
mv files/usr/lib/*/faketime "$cache.$$"
# By a rename, so that a run beside this one never meets half of it.
mv -T "$cache.$$" "$cache" 2>/dev/null || rm -rf "$cache.$$"
ls "$cache"
