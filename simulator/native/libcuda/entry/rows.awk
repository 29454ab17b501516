# SPDX-License-Identifier: Apache-2.0
# The table of cuGetProcAddress: symbol, name, version and kind of the shim's symbols.tsv, and
# whether a stub stands for the function. Reads what nm says of the bodies, then symbols.tsv.
!/\t/ { if ($2 == "T") body[$3] = 1; next }
/^#/ || $1 ~ /^cuGetProcAddress(_v2)?$/ { next } # cu_table.c writes those rows
{ printf "ROW(\"%s\", %s, %d, %s, %s)\n", $2, $1, $3, $4 ? "true" : "false", $1 in body ? "false" : "true" }
