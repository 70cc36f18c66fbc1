#!/usr/bin/env bash
# Builds the dashboard into the package. Run again it does nothing, until its sources change.
set -euo pipefail
cd "$(dirname "$0")/../dashboard"

OUT=../src/restante/server/static

say() { printf 'dashboard: %s\n' "$*" >&2; }

# Without what the build itself writes: src/types.ts, generated from openapi.json.
want=$(find . \( -path ./node_modules -o -path ./src/types.ts \) -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
if [ -f "$OUT/index.html" ] && [ "$(cat "$OUT/.built" 2>/dev/null)" = "$want" ]; then
  exit 0
fi
if ! command -v npm >/dev/null 2>&1; then
  say "npm is missing, so the dashboard is not built; as root, on Debian: apt-get install nodejs npm"
  # A browser then gets a page that says so; tests of the dashboard fail where CI=true.
  exit 0
fi
major=$(node --version | sed 's/^v\([0-9]*\).*/\1/')
if [ "$major" -lt 20 ]; then
  say "Node $major is too old to build it, 20 or newer is needed; the dashboard is not built"
  exit 0
fi
lock=$(sha256sum package-lock.json | cut -c1-16)
if [ "$(cat node_modules/.installed 2>/dev/null)" != "$lock" ]; then
  say "installing the locked packages"
  npm ci --no-audit --no-fund --loglevel=error
  printf '%s' "$lock" >node_modules/.installed
fi
npm run --silent build >/dev/null
printf '%s' "$want" >"$OUT/.built"
say "ready"
