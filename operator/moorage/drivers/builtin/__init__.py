"""Driver `builtin`: a small agent of our own, so that every rule of the runtime has one agent that keeps it natively.

driver            the loop: ask, journal, run tools, take a safe point, until an answer asks for nothing more
conversation      what the loop needs of a protocol (port)
messages, openai  conversations in the three protocols (pure)
model             asks over the relay, retries included
answer            what a model said, made safe to act on (pure)
tools             read, write, edit, bash, todo
prompt            what the model is told
"""
