# Sourced by proofs, with $folder set: a wine prefix in it that passes for Windows 10. POSIX tools and binutils only.
#
#   new_prefix          makes a new prefix with the files that wine 8 lacks; `wine` uses it from then on
#   quietly COMMAND     runs a command as Windows Python wants it: input from a file, output into a pipe

export WINEPREFIX=$folder/prefix HOME=$folder/home LC_ALL=C.UTF-8 WINEDEBUG=-all
runtime=msvcp140,msvcp140_1,msvcp140_2,vcomp140,vcruntime140,vcruntime140_1
export WINEDLLOVERRIDES="ucrtbase,$runtime=n;winemenubuilder.exe,mscoree,mshtml="
unset DISPLAY WAYLAND_DISPLAY XDG_CONFIG_HOME XDG_DATA_HOME MTP_LAUNCHER_HOME MTP_LAUNCHER_MODELS

quietly() { "$@" </dev/null 2>&1 | cat >>"$folder/wine.log"; }

new_prefix() {
    rm -rf "$WINEPREFIX" "$HOME"
    mkdir -p "$WINEPREFIX" "$HOME"
    trap 'wineserver -k || true' EXIT
    WINEDLLOVERRIDES=${WINEDLLOVERRIDES#ucrtbase,} quietly wine wineboot -i
    system=$WINEPREFIX/drive_c/windows/system32
    # numpy calls what wine's C runtime leaves open.
    python3 "$(dirname "${BASH_SOURCE[0]}")/fill_in.py" "$system/ucrtbase.dll" >>"$folder/wine.log"
    # Rust's programs want one function, which is another one's twin.
    printf 'LIBRARY bcryptprimitives.dll\nEXPORTS\n ProcessPrng = advapi32.SystemFunction036\n' >"$folder/lent.def"
    lend bcryptprimitives </dev/null
    # Qt converts text in old code pages by it: this one knows none.
    {
        printf 'LIBRARY icuuc.dll\nEXPORTS\n ucnv_open = refuses\n ucnv_getName = refuses\n'
        for name in ucnv_close ucnv_reset ucnv_getMaxCharSize ucnv_toUnicode ucnv_fromUnicode ucnv_countAvailable \
            ucnv_getAvailableName ucnv_getStandardName ucnv_toUCountPending ucnv_fromUCountPending \
            ucnv_getToUCallBack ucnv_getFromUCallBack ucnv_setToUCallBack ucnv_setFromUCallBack \
            ucnv_cbToUWriteUChars ucnv_cbFromUWriteUChars UCNV_FROM_U_CALLBACK_SUBSTITUTE UCNV_TO_U_CALLBACK_SUBSTITUTE; do
            printf ' %s = nothing\n' "$name"
        done
    } >"$folder/lent.def"
    lend icuuc <<'ASSEMBLY'
.globl nothing, refuses
refuses: movl $4, (%rdx)
nothing: xor %eax, %eax
         ret
ASSEMBLY
    quietly wine winecfg -v win10
}

lend() {
    x86_64-w64-mingw32-as -o "$folder/lent.o" -
    x86_64-w64-mingw32-ld -shared -e 0 -o "$system/$1.dll" "$folder/lent.o" "$folder/lent.def"
}
