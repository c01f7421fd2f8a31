#!/usr/bin/env bash
# Fetch Prometheus and promtool for the tests from Debian's package into the user's cache, without installing it. Does
# nothing if they are in PATH or there already.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/aioelect/prometheus
if command -v prometheus promtool >/dev/null || "$cache/promtool" --version >/dev/null 2>&1; then
  echo "Prometheus is there"
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "Prometheus can't be fetched: this is no Debian. Put 'prometheus' and 'promtool' into PATH." >&2
  echo "The tests run without them; those of the alerts and the dashboard are skipped." >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo "Fetching Prometheus (20 MB)"
if ! apt-get download -qq prometheus 2>log; then
  apt-get update -qq # needs rights; a list of packages may simply not be there yet
  apt-get download -qq prometheus 2>log || { cat log >&2 && exit 1; }
fi
dpkg-deb --extract prometheus_*.deb files
mkdir -p "$(dirname "$cache")"
rm -rf "$cache.$$"
mv files/usr/bin "$cache.$$"
# By a rename, so that a run beside this one never meets half of it.
mv -T "$cache.$$" "$cache" 2>/dev/null || rm -rf "$cache.$$"
"$cache/promtool" --version | head -n 1
