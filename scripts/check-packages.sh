#!/usr/bin/env bash
# Packs each crate that others may depend on as for a registry, and builds the packed crates, with nothing else of this
# workspace: fails if a package lacks a file or a version.
#
#   bash scripts/check-packages.sh
#
# `cargo package` can build them itself, but each with its own features of Burn, which would be compiled for each anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
rm -f "$target"/package/*.crate # of crates that have another name by now
cargo package --locked --quiet --no-verify --workspace --exclude benches --exclude test-kit --exclude ptx --exclude cuda-driver --exclude emulated-nccl --exclude nvrtc-cache
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
unpacked=$target/unpacked
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
# Leaves out the commit that the package comes from, and sets the current time (m): archives have one date for all files,
# and cargo would take other code for what it has built. Packages that have not changed keep their files.
for package in "$target"/package/*-"$version".crate; do
    tar -xzmf "$package" -C "$fresh" --exclude=.cargo_vcs_info.json
done
mkdir -p "$unpacked"
for folder in "$unpacked"/*/; do
    if diff --brief --recursive "$folder" "$fresh/$(basename "$folder")" >/dev/null 2>&1; then
        rm -rf "$fresh/$(basename "$folder")"
    else
        rm -rf "$folder"
    fi
done
find "$fresh" -mindepth 1 -maxdepth 1 -exec mv -t "$unpacked" {} +
cp Cargo.lock "$unpacked/"
{
    printf '[workspace]\nresolver = "3"\nmembers = ["*-%s"]\n\n[patch.crates-io]\n' "$version"
    for folder in "$unpacked"/*-"$version"; do
        folder=${folder##*/}
        printf '%s = { path = "%s" }\n' "${folder%-"$version"}" "$folder"
    done
    # Without Kiln's profiles, all dependencies would be compiled again.
    sed -n '/^\[profile\.dev\]/,$p' Cargo.toml
} >"$unpacked/Cargo.toml"
cd "$unpacked"
CARGO_TARGET_DIR=$target cargo build --quiet --workspace
printf 'packed and built: %s\n' "$(ls -d -- *-"$version" | tr '\n' ' ')"
