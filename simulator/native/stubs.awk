# SPDX-License-Identifier: Apache-2.0
# STUB(name) for each function that has no body. Reads what nm says of the bodies, then a table of
# functions.
!/\t/ { if ($2 == "T") body[$3] = 1; next }
!/^#/ && !($1 in body) && !listed[$1]++ { print "STUB(" $1 ")" }
