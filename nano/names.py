"""Real names and verbs, listed; the made-up ones come from nano/words.py."""

from __future__ import annotations

CITIES = (
    "Paris|London|Berlin|Madrid|Rome|Tokyo|Oslo|"
    "New York|San Francisco|Boston|Chicago|Sydney|Beijing|Mumbai|"
    "Cairo|Toronto|Seattle|Amsterdam|Vienna|Prague|Lisbon|"
    "Dublin|Moscow|Istanbul|Seoul|Singapore|Los Angeles|Mexico City|"
    "Buenos Aires|Nairobi|Athens|Brussels|Zurich|Hamburg|Munich|"
    "Kyoto|Manchester|Cologne|Naples|Marseille|Houston|Philadelphia|"
    "Phoenix|Atlanta|Melbourne|Auckland|Vancouver|Shanghai|Dubai|"
    "Krakow|Budapest|Porto|Reykjavik|Utrecht|Ljubljana|Zagreb|"
    "Lagos|Bogota|Santiago|Hanoi|Manila|Nantes|Turin|"
    "Milan|Florence|Leipzig|Dresden|Bern|Basel|Ghent|"
    "Rotterdam|Edinburgh|Glasgow|Paris, France|London, UK|Boston, MA|San Francisco, CA|"
    "Oslo, Norway|Washington|Norway|France|Germany|Italy|Spain|"
    "Japan|China|India|Brazil|Canada|Europe/Paris|America/New_York|"
    "Asia/Tokyo|UTC"
).split("|")
HELD_OUT_CITIES = (
    "Helsinki|Warsaw|Denver|Lyon|Osaka|Montreal|Geneva|"
    "Barcelona|Hong Kong|Cape Town|Delhi|Lima|Havana|Stockholm|"
    "Las Vegas|Miami|Dallas|Jakarta|Bangkok|Venice"
).split("|")
PEOPLE = (
    "Anna|Bob|Alice|Carlos|David|Eva|Frank|"
    "Grace|Henry|Ivan|Julia|Kevin|Laura|Maria|"
    "Nina|Oscar|Peter|Rosa|Sam|Tom|Victor|"
    "Wendy|John Smith|Jane Doe"
).split("|")
HELD_OUT_PEOPLE = (
    "Emma|Lucas|Olivia|Noah|Sofia|Daniel|Hannah|"
    "Martin|Paul|Clara|Simon|Helen|George Miller|Linda Brown"
).split("|")
VERBS = """create make open close start stop cancel update remove order buy book check show read
write list send move copy save rename play pause lock unlock print scan clean count rate review
approve reject invite assign archive restore upload download install""".split()
HELD_OUT_VERBS = """delete reserve register submit publish schedule enable record merge export share
activate repair confirm""".split()
