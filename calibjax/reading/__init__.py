"""Files of others, read strictly: a bad row is set aside, a good one never lost, nothing guessed.

`textfiles` reads rows, `fields` checks their values; `rowreaders` knows the formats, `textlines`
the lines, `strictjson` the values in them.
"""
