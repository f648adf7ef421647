"""`make pipeline`: flight events through Spark streaming queries into topics and a picture.

The modules are:

flights     the data: departures and arrivals of January 2013, some departures published late
queries     the two streaming queries, and the program that runs them
picture     delays by carrier and day, as SVG
pipeline    runs everything: publishes, draws, kills and restarts the queries, and verifies the results
"""
