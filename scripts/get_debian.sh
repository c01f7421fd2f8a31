#!/usr/bin/env bash
# Fetch a tool of the tests from Debian's package into the user's cache, without installing it: `prometheus` (with
# promtool, for alerts and dashboard) or `faketime` (for servers whose clock is wrong). Does nothing if it is there.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/aioelect/$1
case $1 in
prometheus)
  package=prometheus folder=usr/bin hint="Put 'prometheus' and 'promtool' into PATH."
  is_there() { command -v prometheus promtool >/dev/null || "$cache/promtool" --version >/dev/null 2>&1; }
  ;;
faketime)
  package=libfaketime folder='usr/lib/*/faketime' hint="Install the package faketime of your system."
  is_there() { [ -e "$cache/libfaketime.so.1" ] || compgen -G "/usr/lib/*/faketime/libfaketime.so.1" >/dev/null; }
  ;;
*)
  echo "usage: $0 prometheus | faketime" >&2
  exit 2
  ;;
esac
if is_there; then
  echo "$1 is there"
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "$1 can't be fetched: this is no Debian. $hint" >&2
  echo "The tests run without it; those that need it are skipped." >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo "Fetching $package"
if ! apt-get download -qq "$package" 2>log; then
  apt-get update -qq # needs rights; a list of packages may simply not be there yet
  apt-get download -qq "$package" 2>log || { cat log >&2 && exit 1; }
fi
dpkg-deb --extract "$package"_*.deb files
mkdir -p "$(dirname "$cache")"
rm -rf "$cache.$$"
# shellcheck disable=SC2086 # the folder may be a pattern
mv files/$folder "$cache.$$"
# By a rename, so that a run beside this one never meets half of it.
mv -T "$cache.$$" "$cache" 2>/dev/null || rm -rf "$cache.$$"
ls "$cache"
