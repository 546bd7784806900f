#!/bin/sh
# Compiles the native part: native/build.sh DIRECTORY JAVA_HOME. libfide is found through pkg-config; where its archive is there, it is linked into it, so that
# the jar needs nothing else on its host.
set -eu
here=$(dirname "$0")
directory=$1/linux-$(uname -m)
home=$2
[ -f "$home/include/jni.h" ] || home=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")
libdir=$(pkg-config --variable=libdir fide) || {
	echo "native/build.sh: libfide is not found: install libfide-dev (or make install), or name the directory of fide.pc in PKG_CONFIG_PATH" >&2
	exit 1
}
if [ -f "$libdir/libfide.a" ]; then
	library="$libdir/libfide.a -Wl,--exclude-libs,ALL -lgcc_s -lutil -lrt -lpthread -lm -ldl"
else
	library=$(pkg-config --libs fide)
fi
mkdir -p "$directory"
# shellcheck disable=SC2046,SC2086
${CC:-cc} -std=c11 -O2 -fPIC -shared -Wall -Wextra -Werror -fvisibility=hidden -Wl,-z,defs -Wl,--gc-sections -s \
	-I"$home/include" -I"$home/include/linux" $(pkg-config --cflags fide) "$here/fide_jni.c" -o "$directory/libfide_jni.so" $library
