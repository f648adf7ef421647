"""Sans-IO state machines of the node: no asyncio, sockets, files, clocks or random numbers inside.

Time comes in as arguments (`now_us`), decisions come out as return values; the shell carries them out.
"""
