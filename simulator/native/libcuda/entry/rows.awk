# SPDX-License-Identifier: Apache-2.0
# The table of cuGetProcAddress: what the simulator defines (nm), with name, version and kind from the shim's symbols.tsv.
FILENAME ~ /symbols\.tsv$/ { if (!/^#/) { api[$1] = $2; since[$1] = $3; ptsz[$1] = $4 }; next }
$2 == "T" && ($3 in api) { printf "ROW(\"%s\", %s, %d, %s)\n", api[$3], $3, since[$3], ptsz[$3] ? "true" : "false" }
