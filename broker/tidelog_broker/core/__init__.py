"""Sans-IO state machines of the node: no asyncio, sockets, files, clocks or random numbers.

Time is an argument (`now_us`) and decisions are return values, which the caller carries out.
"""
