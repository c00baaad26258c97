package pki

// Role is what a certificate allows its holder to do: one of its DNS names.
type Role string

// The roles that a certificate can name.
const (
	RoleCoordinator Role = "coordinator.rollcall.internal"
	RoleGateway     Role = "gateway.rollcall.internal"
	RoleOperator    Role = "operator.rollcall.internal"
)

// AllRoles returns every role.
func AllRoles() []Role { return []Role{RoleCoordinator, RoleGateway, RoleOperator} }
