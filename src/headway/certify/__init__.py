"""Does it compute what it should? Claims on the user's own plan, made small, each with a bound; and the certificate."""
