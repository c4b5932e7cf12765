"""An agent that counts: one file and one line for each iteration, from the number that it is told to begin at."""

STEPS = 4
AGENT = f"""
left=$(cat "$MOORAGE_REMAINING_FILE")
n=$MOORAGE_NEXT_ITERATION
while [ $n -le {STEPS} ]; do
    test ! -e $n.txt
    echo $n > $n.txt
    echo $n >> all.txt
    sleep 0.1
    echo '{{"moorage": {{"event": "iteration"}}}}'
    while [ "$(cat "$MOORAGE_REMAINING_FILE")" = "$left" ]; do sleep 0.02; done
    left=$(cat "$MOORAGE_REMAINING_FILE")
    n=$((n + 1))
done
"""
