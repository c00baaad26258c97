package relayer

// Status of a transaction as it is stored; the package's documentation maps it to the other vocabularies.
type Status string

// The stored statuses.
const (
	Allocated   Status = "allocated"
	Broadcasted Status = "broadcasted"
	Unknown     Status = "unknown"
	Mined       Status = "mined"
	Confirmed   Status = "confirmed"
	Reverted    Status = "reverted"
	Failed      Status = "failed"
	Replaced    Status = "replaced"
	Dropped     Status = "dropped"
	Canceled    Status = "canceled"
	Expired     Status = "expired"
)

// Statuses are all of them, in the order in which a transaction may go through them.
var Statuses = []Status{
	Allocated, Broadcasted, Unknown, Mined, Confirmed, Reverted, Failed, Replaced, Dropped, Canceled, Expired,
}

// Final reports whether nothing comes after it.
func (s Status) Final() bool {
	switch s {
	case Allocated, Broadcasted, Unknown, Mined:
		return false
	default:
		return true
	}
}

// APIStatus is a status in OpenZeppelin's words.
type APIStatus string

// OpenZeppelin's statuses.
const (
	APIPending   APIStatus = "pending"
	APISent      APIStatus = "sent"
	APISubmitted APIStatus = "submitted"
	APIMined     APIStatus = "mined"
	APIConfirmed APIStatus = "confirmed"
	APIFailed    APIStatus = "failed"
	APICanceled  APIStatus = "canceled"
	APIExpired   APIStatus = "expired"
)

// API translates a status; signed says whether anything was signed for the transaction.
func (s Status) API(signed bool) APIStatus {
	switch s {
	case Allocated:
		if signed {
			return APISent
		}
		return APIPending
	case Broadcasted, Unknown:
		return APISubmitted
	case Mined:
		return APIMined
	case Confirmed:
		return APIConfirmed
	case Canceled:
		return APICanceled
	case Expired:
		return APIExpired
	default:
		return APIFailed
	}
}

// Stored is the inverse: every stored status that shows as s, and whether only signed, or only unsigned, transactions
// with it do (nil: both). It is empty for a word that is not OpenZeppelin's.
func (s APIStatus) Stored() (statuses []Status, signed *bool) {
	for _, status := range Statuses {
		if status.API(true) == s || status.API(false) == s {
			statuses = append(statuses, status)
		}
	}
	if s == APISent || s == APIPending {
		signed = new(s == APISent)
	}
	return statuses, signed
}
