from headrace._native.account_clock_pure import AccountClock as AccountClock
