"""`aioelect demo`: the whole story on a real server, with real processes and real signals.

    story.py           the order of the steps, the summary, the exit code
    election_story.py  steps 1 to 3: an election, SIGTERM, kill -9      worker.py  its processes: Elector.run
    pause_story.py     step 4: SIGSTOP between check and write          pod.py     its processes: FencedLock
    verdict.py         what each step must show
    view.py            how it looks
    stage.py           child processes and what they say
    server.py          a server of the demo's own

What it starts and writes ends with it, however it ends: `aioelect/testing/_shelter.py`.

`worker.py` and `pod.py` use nothing but the public API: they are examples of good use.
"""
