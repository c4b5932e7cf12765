#!/bin/sh
# Stands for an agent: any program that changes files in its working directory. It reads its goal, works in two steps,
# and says after each that an iteration is complete, so that Moorage takes a checkpoint there.
set -eu
echo "goal: $(head -c 200 "$MOORAGE_GOAL_FILE")"
cd "${1:-.}"
python3 - <<'PY'
import pathlib
import re

path = pathlib.Path("slugify.py")
text = path.read_text()
text = text.replace('''re.sub(r"[^a-z0-9]", "-", title.lower())''', '''re.findall(r"[a-z0-9]+", title.lower())''')
path.write_text(text)
PY
echo '{"moorage": {"event": "iteration"}}'
python3 - <<'PY'
import pathlib

path = pathlib.Path("slugify.py")
text = path.read_text()
text = text.replace(
    "    return words[:limit]\n",
    "    slug = \"\"\n"
    "    for word in words:\n"
    "        longer = f\"{slug}-{word}\" if slug else word\n"
    "        if len(longer) > limit:\n"
    "            break\n"
    "        slug = longer\n"
    "    return slug\n",
)
path.write_text(text)
PY
echo '{"moorage": {"event": "iteration"}}'
python3 -m unittest -q
echo '{"moorage": {"event": "summary", "text": "slugify joins words by single hyphens and cuts between words"}}'
