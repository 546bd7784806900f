import time

import fide

with fide.Client() as client:
    client.monitor("db@a")
    while True:
        for event in client:  # until the agent ends
            if event.kind == fide.EventKind.FAILURE:
                print(event.name, event.cause, event.grade, flush=True)
        time.sleep(0.01)
        try:
            client.reconnect()  # it restarts: what ends meanwhile is reported then
        except fide.DisconnectedError:
            pass  # not yet
