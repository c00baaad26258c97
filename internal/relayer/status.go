package relayer

// Status is the stored status of a transaction. The package's documentation maps it to OpenZeppelin's and the relay path's.
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

// Statuses are all statuses, in the order in which a transaction may go through them.
var Statuses = []Status{
	Allocated, Broadcasted, Unknown, Mined, Confirmed, Reverted, Failed, Replaced, Dropped, Canceled, Expired,
}

// Final reports whether the status is final.
func (s Status) Final() bool {
	switch s {
	case Allocated, Broadcasted, Unknown, Mined:
		return false
	default:
		return true
	}
}

// APIStatus is a status of OpenZeppelin's API.
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

// API returns the API status of a transaction. signed reports whether it has an attempt.
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

// Stored returns every stored status that maps to s, and whether only signed, or only unsigned, transactions with it do
// (nil: both). It returns none for a status that is not OpenZeppelin's.
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
