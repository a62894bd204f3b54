#!/usr/bin/env bash
# Installs lavapipe, Mesa's Vulkan driver that computes on the CPU, beside the system, on Debian and its derivatives.
#
#   bash scripts/install-lavapipe.sh        # prints the script that runs a program on it
#   $(bash scripts/install-lavapipe.sh) PROGRAM ARGUMENTS...
#
# It needs Mesa 26.1 or later: in 22.3 and 25.0 the compiler crashes on kernels with shared memory and barriers. Debian
# has 26.1 in `sid`, built against a newer C library. So sid's packages and all their dependencies, including the C
# library, are unpacked into a separate folder, and the printed script starts a program with that C library's loader.
# Nothing is installed into the system. It downloads 66 MB and unpacks 340 MB.
set -euo pipefail

prefix=${XDG_DATA_HOME:-$HOME/.local/share}/kiln-lavapipe
run=$prefix/run

say() { printf 'install-lavapipe: %s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

if [[ -x $run ]]; then
    echo "$run"
    exit
fi
command -v apt-get >/dev/null || fail "this is no Debian: install Mesa 26.1 or later by other means, and run programs with VK_DRIVER_FILES set to its lvp_icd.json"
mirror=$(grep -rhsoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d | head -n 1 | tr -d ' ' || true)
[[ -n $mirror ]] || fail "this machine's apt knows no mirror of Debian"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,archives}/partial "$work/root"
: >"$work/status" # no package counts as installed, so all are fetched
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sources.list"
apt=(apt-get --quiet=2 -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$work/lists"
    -o "Dir::State::status=$work/status" -o "Dir::Cache::Archives=$work/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
    -o APT::Sandbox::User=root -o Debug::NoLocking=1)
say "fetching Mesa of Debian's sid"
"${apt[@]}" update >&2
"${apt[@]}" --yes --no-install-recommends --download-only install mesa-vulkan-drivers libvulkan1 >&2
for package in "$work"/archives/*.deb; do
    dpkg --extract "$package" "$work/root"
done
library=$(find "$work/root/usr/lib" -name libvulkan_lvp.so | head -n 1)
loader=$(find "$work/root" -name 'ld-linux-*.so.*' | head -n 1)
[[ -n $library && -n $loader ]] || fail "Debian's packages hold no lavapipe"
library=${library#"$work/root"} loader=${loader#"$work/root"}
icd=$(find "$work/root/usr/share/vulkan/icd.d" -name 'lvp_icd*.json' | head -n 1)
sed -i "s%\"library_path\": *\"[^\"]*\"%\"library_path\": \"$prefix$library\"%" "$icd"
# The system's libraries come last: those that the program is linked to and Mesa does not need.
system=$(dirname "$(cc -print-file-name=libgcc_s.so.1 2>/dev/null || echo /usr/lib/libgcc_s.so.1)")
cat >"$work/root/run" <<RUN
#!/bin/sh
# Runs a program, with Mesa's lavapipe as its only Vulkan driver.
VK_DRIVER_FILES=$prefix${icd#"$work/root"} exec $prefix$loader --library-path "$prefix$(dirname "$library"):$system\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" "\$@"
RUN
chmod +x "$work/root/run"
# Moved in one step, so that an incomplete folder is not taken for complete.
rm -rf "$prefix"
mkdir -p "$(dirname "$prefix")"
mv "$work/root" "$prefix"
echo "$run"
