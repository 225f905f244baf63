# jq of the files of a commit, by gcc alone: without autotools, and without what is in submodules.
set -e
od -v -A n -t o1 src/builtin.jq |
    sed -e 's/$/ /' -e 's/\([0-7]\) /\1, /g' -e 's/ $//' -e 's/ \([0-7]\)/ 0\1/g' > src/builtin.inc
echo '#define JQ_VERSION "of a commit"' > src/version.h
echo '#define JQ_CONFIG ""' > src/config_opts.inc
has() { for name in "$@"; do echo "-DHAVE_$name"; done; }
gcc -O2 -w -std=gnu11 -D_GNU_SOURCE -DIEEE_8087 -I. -Isrc \
    $(has ALLOCA_H TIMEGM GMTIME_R STRPTIME MEMMEM ISATTY SETLOCALE ATAN2 POW LOG2) \
    $(ls src/*.c | grep -v inject_errors) -lm -lpthread -o "$KVTRAIL_OUT/jq"
