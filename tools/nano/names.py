"""Real names and verbs, listed; made-up names come from tools/nano/words.py."""

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
    "Asia/Tokyo|UTC|Helsinki|Warsaw|Lyon|Osaka|Montreal|Geneva|Lima|Havana|Stockholm|"
    "Jakarta|Bangkok|Venice|Austin|Hamilton|Charlotte|York|San Jose|Rio|Copenhagen|Bristol"
).split("|")
HELD_OUT_CITIES = (
    "Denver|Barcelona|Hong Kong|Cape Town|Delhi|Las Vegas|Miami|Dallas|Oxford|Liverpool|"
    "Kansas City|Tel Aviv|San Diego|Detroit|Seville|New Orleans|Cordoba|La Paz|Santa Fe|"
    "Calgary|Nashville|Minneapolis|Sacramento|Bratislava|Johannesburg|Casablanca|Hyderabad|"
    "Bangalore|Karachi|Tehran|Baghdad|Riyadh|Kabul|Tashkent|Chengdu|Shenzhen|Sapporo|Nagoya|"
    "Taipei|Surabaya|Perth|Adelaide|Brisbane|Wellington|Christchurch|Honolulu|Anchorage|Tucson|"
    "Albuquerque|Milwaukee|Cleveland|Pittsburgh|Baltimore|Memphis|Louisville|Tampa|Orlando|Quito|"
    "Montevideo|Recife|Salvador|Tunis|Algiers|Dakar|Accra|Kampala|Harare|Rotorua|Timbuktu|"
    "São Paulo|Málaga|Düsseldorf|Zürich|Kraków|Malmö|Tromsø|Nice|Bath|Reading|Mobile"
).split("|")
PEOPLE = (
    "Anna|Bob|Alice|Carlos|David|Eva|Frank|Grace|Henry|Ivan|Julia|Kevin|Laura|Maria|"
    "Nina|Oscar|Peter|Rosa|Sam|Tom|Victor|Wendy|John Smith|Jane Doe|Olivia|Noah|Sofia|"
    "Hannah|Clara|Michael|James|Mark|Andrew|Alex|Chris|Adam|Ben|Jack|Ryan|Eric|Kate|"
    "Jessica|Amy|Lisa|Mary|Jennifer|Emily|Steve|Jason|Brian|Max|Leo|Joe"
).split("|")
HELD_OUT_PEOPLE = (
    "Emma|Lucas|Daniel|Martin|Paul|Simon|Helen|George Miller|Linda Brown|Robert|Sarah|Thomas"
).split("|")
VERBS = """create make open close start stop cancel update remove order buy book check show read
write list send move copy save rename play pause lock unlock print scan clean count rate review
approve reject invite assign archive restore upload download install""".split()
HELD_OUT_VERBS = """delete reserve register submit publish schedule enable record merge export share
activate repair confirm""".split()
# Of these a made-up tool only looks something up; `get` is the likeliest.
LOOKUP_VERBS = "get get get fetch lookup find read check query".split()
