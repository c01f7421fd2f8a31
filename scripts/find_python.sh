#!/usr/bin/env bash
# Print the path of a Python of the given version (3.12) that runs and can make virtual environments; fail if none does.
set -euo pipefail

version=$1
candidates=$(type -aP "python$version" || true)
if command -v pyenv >/dev/null; then
  # Newest patch release first. A shim in PATH may exist for a version that is not switched on.
  candidates+=$'\n'$(ls -1d "$(pyenv root)/versions/$version".*/bin/"python$version" 2>/dev/null | sort -rV || true)
fi
while read -r python; do
  if [[ -n $python ]] && "$python" -c 'import ensurepip, ssl, venv' >/dev/null 2>&1; then
    echo "$python"
    exit 0
  fi
done <<<"$candidates"
exit 1
