#!/usr/bin/env bash
# Puts LLVM 23 where CubeCL's build looks for it, as the Cargo features `cuda` and `cpu-jit` need, on Debian and its
# derivatives.
#
#   bash scripts/install-llvm.sh
#
# CubeCL's build (the crate tracel-llvm-bundler) downloads LLVM by itself. If it has done so, or can, this script does
# nothing. If the download is blocked, it unpacks Debian's packages of the same LLVM into the download's folder. Nothing
# is installed into the system except the libraries listed below.
set -euo pipefail

version=23.1.0-4 # of tracel-llvm-bundler in Cargo.lock
major=${version%%.*}
prefix=${XDG_DATA_HOME:-$HOME/.local/share}/tracel/tracel-llvm-$version
release=https://github.com/tracel-ai/tracel-llvm/releases/download/v$version/linux-$(uname -m | sed 's/x86_64/x64/; s/aarch64/AArch64/').checksums.json

say() { printf 'install-llvm: %s\n' "$*"; }

fail() {
    say "$*" >&2
    exit 1
}

downloads() {
    python3 -c 'import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1], method="HEAD"), timeout=15)' "$release" 2>/dev/null
}

# Libraries needed to link the archives of Debian's LLVM.
install_libraries() {
    local sudo=() packages=(zlib1g-dev libzstd-dev libxml2-dev libz3-dev binutils gcc)
    dpkg --status "${packages[@]}" >/dev/null 2>&1 && return
    [[ $(id -u) == 0 ]] || sudo=(sudo)
    "${sudo[@]}" apt-get update --quiet=2
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends "${packages[@]}"
}

# unpack DIR: unpacks into DIR Debian's packages of this LLVM, from the suite `sid` of the mirror that this machine
# uses.
unpack() {
    local root=$1 apt mirror
    mirror=$(grep -rhsoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d | head -n 1 | tr -d ' ' || true)
    [[ -n $mirror ]] || fail "this machine's apt knows no mirror of Debian: let CubeCL's build download LLVM instead"
    mkdir -p "$work"/{lists,archives}/partial
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sources.list"
    apt=(apt-get --quiet=2 -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$work/lists" -o "Dir::Cache::Archives=$work/archives" -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
        -o APT::Sandbox::User=root)
    "${apt[@]}" update
    (cd "$work/archives" && "${apt[@]}" download "llvm-$major-dev" "llvm-$major")
    for package in "$work"/archives/*.deb; do
        dpkg --extract "$package" "$root"
    done
}

# Debian's llvm-config gives shared libraries by path, and lists Polly, which is in another package.
wrap_llvm_config() {
    cat >"$1/bin/llvm-config" <<'WRAPPER'
#!/bin/sh
out=$("$(dirname "$0")/llvm-config.real" "$@") || exit $?
printf '%s\n' "$out" | sed -E -e 's%/[^ ]*/lib([a-z0-9]+)\.so%-l\1%g' -e 's%-lPolly[A-Za-z]*%%g'
WRAPPER
    chmod +x "$1/bin/llvm-config"
}

# The archives refer to three functions that glibc has since 2.38. For older versions, these forward to the C11
# functions under their names.
add_missing_symbols() {
    local archive=$1
    cat >"$work/isoc23.c" <<'C'
#include <stdlib.h>
long __isoc23_strtol(const char *s, char **end, int base) { return strtol(s, end, base); }
long long __isoc23_strtoll(const char *s, char **end, int base) { return strtoll(s, end, base); }
unsigned long long __isoc23_strtoull(const char *s, char **end, int base) { return strtoull(s, end, base); }
C
    echo 'long __isoc23_strtol(const char *, char **, int); int main(void) { return (int)__isoc23_strtol("0", 0, 0); }' >"$work/probe.c"
    cc -x c "$work/probe.c" -o "$work/probe" 2>/dev/null && return
    cc -O2 -c "$work/isoc23.c" -o "$work/isoc23.o"
    ar r "$archive" "$work/isoc23.o"
}

if [[ -e $prefix/.tracel-llvm-installed ]]; then
    say "LLVM $("$prefix/bin/llvm-config" --version) is in $prefix"
    exit
fi
if downloads; then
    say "nothing to do: CubeCL's build will download LLVM"
    exit
fi
command -v apt-get >/dev/null || fail "the download is blocked and this is no Debian: unpack an LLVM $major into $prefix"
say "the download is blocked: taking LLVM $major from Debian"
install_libraries
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unpack "$work/root"
[[ -d $work/root/usr/lib/llvm-$major/lib ]] || fail "Debian's packages hold no /usr/lib/llvm-$major/lib"
new=$work/new
mkdir -p "$new"/{bin,include,lib}
cp "$work/root/usr/lib/llvm-$major"/lib/*.a "$new/lib/"
cp -r "$work/root/usr/include/llvm-$major/llvm" "$work/root/usr/include/llvm-c-$major/llvm-c" "$new/include/"
cp "$work/root/usr/lib/llvm-$major/bin/llvm-config" "$new/bin/llvm-config.real"
wrap_llvm_config "$new"
add_missing_symbols "$new/lib/libLLVMSupport.a"
# The marker is written last and the folder is moved in one step, so that an incomplete one is not taken for complete.
touch "$new/.tracel-llvm-installed"
rm -rf "$prefix"
mkdir -p "$(dirname "$prefix")"
mv "$new" "$prefix"
say "LLVM $("$prefix/bin/llvm-config" --version) is in $prefix"
