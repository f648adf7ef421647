"""`tidelog up`: nodes and a gateway as processes of this machine."""
