"""`make pipeline`: flights as they depart and land, through Spark, back into topics, and into a picture.

flights     the data: departures and arrivals of January 2013, some of them late
queries     the two streaming queries, and the program that runs them
picture     delays by carrier and day, as SVG
pipeline    runs all of it: feeds, draws, kills the queries in the middle, starts them again, and counts
"""
