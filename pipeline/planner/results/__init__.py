"""What measured runs say: profiles, advice, and plans beside what came of them."""
