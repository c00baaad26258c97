package events

import (
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
)

var (
	factory = common.Address{0xfa}
	escrow  = common.HexToAddress("0x00000000000000000000000000000000000000E5")
	payer   = common.HexToAddress("0x00000000000000000000000000000000000000A1")
	payee   = common.HexToAddress("0x00000000000000000000000000000000000000A2")
	arbiter = common.HexToAddress("0x00000000000000000000000000000000000000A3")
	one     = common.Hash{1} // a transaction
)

// watched is a registry of tests.
type watched struct{ factories, escrows []common.Address }

func (w watched) Factory(a common.Address) bool { return slices.Contains(w.factories, a) }
func (w watched) Escrow(a common.Address) bool  { return slices.Contains(w.escrows, a) }

// emit returns the log of an event of a contract's interface.
func emit(t testing.TB, by common.Address, contract abi.ABI, name string, args ...any) Log {
	t.Helper()
	topics, data, err := escrowchain.Log(contract, name, args...)
	require.NoError(t, err)
	return Log{Contract: by, Topics: topics, Data: data, Tx: one}
}

func deployed(t testing.TB, of common.Address) Log {
	return emit(t, factory, escrowchain.FactoryABI(), "EscrowDeployed", of, payer, payee, arbiter, big.NewInt(5), big.NewInt(3600), uint8(2))
}

func created(t testing.TB) Log {
	return emit(t, escrow, escrowchain.EscrowABI(), "EscrowCreated", payer, payee, arbiter, big.NewInt(5), big.NewInt(7200), uint8(2))
}

func approved(t testing.TB, by common.Address) Log {
	return emit(t, escrow, escrowchain.EscrowABI(), "Approved", by)
}

func TestBuiltIn_Topics_AreThoseOfTheContracts(t *testing.T) {
	t.Parallel()
	var topics []string
	for _, topic := range BuiltIn().Topics() {
		topics = append(topics, topic.Hex())
	}
	require.ElementsMatch(t, []string{
		"0x94de54d4de95fe813702db78e6398ce699c34fa6db663d3f60a826923fb7ace9", "0x3c9dc28f6be15c80198ca199cf06b1dce0f9ce0398ff42ee14daf86edf02a252",
		"0xe6937249bbc03fbc2004b1de77449df9901d6f3b5e685634282c4092637e2eb4", "0x5d91bd0cecc45fef102af61de92c5462fadc884a5ce9d21c15e8a85198f2349e",
		"0xe2dfcde598cb66b4f1b776076fc47ec832da9a3f92a82f224b0181ba2bfb9b9e", "0xefe2e8d9a1e53fd22b439f66298e9dc5146b8a429b9e1636e2334a59782e6904",
	}, topics)
	for _, contract := range []abi.ABI{escrowchain.FactoryABI(), escrowchain.EscrowABI()} {
		for _, e := range contract.Events {
			require.Contains(t, topics, e.ID.Hex(), e.Sig)
		}
	}
}

// E6: the constructor of an escrow emits before its factory does.
func TestMatch_EscrowOfTheSameBlock_Found(t *testing.T) {
	t.Parallel()
	logs := []Log{created(t), deployed(t, escrow), approved(t, payer), approved(t, arbiter)}
	logs[1].Index = 1 << 40
	found, parked := BuiltIn().Match(1337, logs, watched{factories: []common.Address{factory}})
	require.Empty(t, parked)
	require.Len(t, found, 4)
	for i, want := range []struct {
		name  string
		state State
		by    common.Address
		n     int
	}{{"EscrowCreated", "", escrow, 0}, {"EscrowDeployed", Active, factory, 0}, {"Approved", "", escrow, 0}, {"Approved", "", escrow, 1}} {
		o := found[i]
		require.Equal(t, want.name, o.Event.Name)
		require.Equal(t, want.state, o.Event.State)
		require.Equal(t, escrow, o.Escrow)
		require.Equal(t, ID{1337, one, want.by, logs[i].Topics[0], want.n}, o.ID)
	}
	require.Equal(t, uint64(1<<40), found[1].Index)
	require.Equal(t, Args{
		{"escrow", "0x00000000000000000000000000000000000000e5"}, {"payer", "0x00000000000000000000000000000000000000a1"},
		{"payee", "0x00000000000000000000000000000000000000a2"}, {"arbiter", "0x00000000000000000000000000000000000000a3"},
		{"amount", "5"}, {"releaseDelay", "3600"}, {"approvalsRequired", "2"},
	}, found[1].Args)
	require.Equal(t, payer, *found[1].Fact(found[1].Event.Payer))
	require.Equal(t, int64(5), found[1].Amount().Int64())
	require.Nil(t, found[2].Amount())
	require.Equal(t, "1337:0x0100000000000000000000000000000000000000000000000000000000000000:0x00000000000000000000000000000000000000e5:"+
		"0x5d91bd0cecc45fef102af61de92c5462fadc884a5ce9d21c15e8a85198f2349e:1", found[3].ID.String())
}

// The older form of the factory's event has no arbiter.
func TestMatch_OlderFactory_Found(t *testing.T) {
	t.Parallel()
	const older = `[{"type":"event","name":"EscrowDeployed","inputs":[{"name":"escrow","type":"address","indexed":true},
		{"name":"payer","type":"address","indexed":true},{"name":"payee","type":"address","indexed":true},{"name":"amount","type":"uint256"},
		{"name":"releaseDelay","type":"uint256"},{"name":"approvalsRequired","type":"uint8"}]}]`
	contract, err := abi.JSON(strings.NewReader(older))
	require.NoError(t, err)
	log := emit(t, factory, contract, "EscrowDeployed", escrow, payer, payee, big.NewInt(5), big.NewInt(3600), uint8(2))
	require.Equal(t, "0x3c9dc28f6be15c80198ca199cf06b1dce0f9ce0398ff42ee14daf86edf02a252", log.Topics[0].Hex())
	found, parked := BuiltIn().Match(1337, []Log{log, approved(t, payer)}, watched{factories: []common.Address{factory}})
	require.Empty(t, parked)
	require.Len(t, found, 2, "its escrow is watched")
	require.Equal(t, escrow, found[0].Escrow)
	require.Equal(t, Active, found[0].Event.State)
	require.Equal(t, Args{
		{"escrow", "0x00000000000000000000000000000000000000e5"}, {"payer", "0x00000000000000000000000000000000000000a1"},
		{"payee", "0x00000000000000000000000000000000000000a2"}, {"amount", "5"}, {"releaseDelay", "3600"}, {"approvalsRequired", "2"},
	}, found[0].Args)
}

func TestMatch_Strangers_AreIgnored(t *testing.T) {
	t.Parallel()
	set := BuiltIn()
	for name, logs := range map[string][]Log{
		"an escrow that is not registered":      {approved(t, payer)},
		"a contract that is no factory":         {{Contract: escrow, Topics: deployed(t, escrow).Topics, Data: deployed(t, escrow).Data}},
		"a factory with the event of an escrow": {{Contract: factory, Topics: approved(t, payer).Topics}},
		"another topic":                         {{Contract: factory, Topics: []common.Hash{{9}}}},
		"no topic":                              {{Contract: factory}},
	} {
		found, parked := set.Match(1, logs, watched{factories: []common.Address{factory}})
		require.Empty(t, found, name)
		require.Empty(t, parked, name)
	}
}

// E7: a log that does not decode is parked, stops no other, and counts for the ids of the next ones.
func TestMatch_NotDecodable_ParkedAndCounted(t *testing.T) {
	t.Parallel()
	dirty := approved(t, payer)
	dirty.Topics[1][0] = 1
	more := approved(t, payer)
	more.Topics = append(more.Topics, common.Hash{})
	data := approved(t, payer)
	data.Data = []byte{0}
	short := emit(t, escrow, escrowchain.EscrowABI(), "EscrowReleased", payee, big.NewInt(5), big.NewInt(6))
	short.Data = short.Data[:63]
	large := created(t)
	large.Data[64] = 1 // 256 approvals and more
	address := deployed(t, escrow)
	address.Data[0] = 1
	set, w := BuiltIn(), watched{[]common.Address{factory}, []common.Address{escrow}}
	for name, bad := range map[string]Log{"dirty address": dirty, "more topics": more, "data": data, "short data": short, "overflow": large} {
		found, parked := set.Match(1, []Log{bad, approved(t, payee)}, w)
		require.Len(t, parked, 1, name)
		require.Equal(t, escrow, *parked[0].Escrow)
		require.Equal(t, bad, parked[0].Log)
		require.NotEmpty(t, parked[0].Reason)
		require.Len(t, found, 1, name)
		n := 0
		if bad.Topics[0] == found[0].ID.Topic {
			n = 1
		}
		require.Equal(t, n, found[0].ID.N, name)
	}
	found, parked := set.Match(1, []Log{address}, w)
	require.Empty(t, found)
	require.Len(t, parked, 1)
	require.Nil(t, parked[0].Escrow)
}

// The types of other contracts' events.
const types = `[{"type": "event", "name": "Opened", "inputs": [{"name": "vault", "type": "address", "indexed": true}, {"name": "note", "type": "string"}]},
	{"type": "event", "name": "Opened", "inputs": [{"name": "vault", "type": "address"}, {"name": "note", "type": "string"}]},
	{"type": "event", "name": "All", "inputs": [
		{"name": "name", "type": "string", "indexed": true}, {"name": "pair", "type": "tuple", "indexed": true, "components": [{"name": "a", "type": "int8"}]},
		{"name": "small", "type": "int8"}, {"name": "negative", "type": "int256"}, {"name": "large", "type": "uint256"}, {"name": "yes", "type": "bool"},
		{"name": "code", "type": "bytes4"}, {"name": "raw", "type": "bytes"}, {"name": "text", "type": "string"}, {"name": "list", "type": "uint64[]"},
		{"name": "grid", "type": "address[1][2]"}, {"name": "both", "type": "tuple", "components": [{"name": "n", "type": "uint256"}, {"name": "s", "type": "string[]"}]}]}]`

const other = `factory:
  abi: [types.json]
  events:
    - event: Opened(address, string)
      escrow: vault
      status: active
escrow:
  abi: [types.json]
  events:
    - event: All(string,(int8),int8,int256,uint256,bool,bytes4,bytes,string,uint64[],address[1][2],(uint256,string[]))
      status: released
`

// write writes files into a folder, and returns the path of the first.
func write(t *testing.T, files ...string) string {
	t.Helper()
	folder := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		require.NoError(t, os.WriteFile(filepath.Join(folder, files[i]), []byte(files[i+1]), 0o600))
	}
	return filepath.Join(folder, files[0])
}

// Another pair of factory and escrow needs a file, and no code. One topic0 may have two layouts.
func TestLoad_OtherContracts_Decoded(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"a list": types, "an artifact": `{"contractName": "Vault", "abi": ` + types + `}`} {
		set, err := Load(write(t, "events.yaml", other, "types.json", content))
		require.NoError(t, err, name)
		parsed, err := abi.JSON(strings.NewReader(types))
		require.NoError(t, err)
		type pair struct {
			N *big.Int `abi:"n"`
			S []string `abi:"s"`
		}
		all := emit(t, escrow, abi.ABI{Events: map[string]abi.Event{"All": func() abi.Event {
			e := parsed.Events["All"]
			e.Inputs = e.Inputs[2:]
			return e
		}()}}, "All", int8(-5), big.NewInt(-1), abi.MaxUint256, true, [4]byte{0xab}, []byte{0, 1}, "\x00<é>", []uint64{1, 1 << 63},
			[2][1]common.Address{{payer}, {payee}}, pair{big.NewInt(7), []string{"a\"", ""}})
		all.Topics = append(all.Topics, common.Hash{7}, common.Hash{8})
		opened := emit(t, factory, parsed, "Opened", escrow, "first")
		second := emit(t, factory, parsed, "Opened0", arbiter, "second")
		require.NotEqual(t, len(opened.Topics), len(second.Topics))
		found, parked := set.Match(1, []Log{opened, second, all}, watched{factories: []common.Address{factory}})
		require.Empty(t, parked)
		require.Len(t, found, 3)
		require.Equal(t, escrow, found[0].Escrow)
		require.Equal(t, arbiter, found[1].Escrow)
		require.Equal(t, "Opened", found[1].Event.Name)
		require.Equal(t, "second", found[1].Args.Get("note"))
		require.Equal(t, Args{
			{"name", common.Hash{7}.Hex()}, {"pair", common.Hash{8}.Hex()}, {"small", "-5"}, {"negative", "-1"},
			{"large", "115792089237316195423570985008687907853269984665640564039457584007913129639935"}, {"yes", "true"}, {"code", "0xab000000"},
			{"raw", "0x0001"}, {"text", "\x00<é>"}, {"list", `["1","9223372036854775808"]`},
			{"grid", `[["0x00000000000000000000000000000000000000a1"],["0x00000000000000000000000000000000000000a2"]]`}, {"both", `{"n":"7","s":["a\"",""]}`},
		}, found[2].Args)
		bad := emit(t, factory, parsed, "Opened", escrow, "\xff")
		found, parked = set.Match(1, []Log{bad}, watched{factories: []common.Address{factory}})
		require.Empty(t, found)
		require.Contains(t, parked[0].Reason, "not UTF-8")
	}
}

// E7: 96 KB of lists whose offsets point to the same bytes would decode to gigabytes. A log that decodes to more than it has is parked.
func TestMatch_ValuesShareBytes_Parked(t *testing.T) {
	t.Parallel()
	ten := strings.Repeat("0123456789", 10)
	factorySection, _, _ := strings.Cut(other, "escrow:\n  abi")
	for typ, c := range map[string]struct {
		value any
		heads int // where the offsets begin
	}{
		"string[]":       {[]string{ten, ten, ten, ten}, 64},
		"bytes[4]":       {[4][]byte{[]byte(ten), []byte(ten), []byte(ten), []byte(ten)}, 32},
		"uint256[2][][]": {[][][2]*big.Int{{{big.NewInt(1), big.NewInt(2)}}, {{big.NewInt(1), big.NewInt(2)}}, {{big.NewInt(1), big.NewInt(2)}}, {{big.NewInt(1), big.NewInt(2)}}}, 64},
	} {
		one := `[{"type": "event", "name": "Listed", "inputs": [{"name": "list", "type": "` + typ + `"}]}]`
		parsed, err := abi.JSON(strings.NewReader(one))
		require.NoError(t, err)
		set, err := Load(write(t, "events.yaml", factorySection+"escrow:\n  abi: [one.json]\n  events:\n    - event: Listed("+typ+")\n", "types.json", types, "one.json", one))
		require.NoError(t, err, typ)
		l := emit(t, escrow, parsed, "Listed", c.value)
		found, parked := set.Match(1, []Log{l}, watched{escrows: []common.Address{escrow}})
		require.Len(t, found, 1, "%s: %v", typ, parked)

		first := slices.Clone(l.Data[c.heads : c.heads+32])
		size := (len(l.Data) - c.heads - 4*32) / 4 // of one of the four equal values
		for i := range 4 {
			copy(l.Data[c.heads+32*i:], first)
		}
		l.Data = l.Data[:len(l.Data)-3*size]
		values, err := parsed.Events["Listed"].Inputs.Unpack(l.Data)
		require.NoError(t, err, typ)
		require.Equal(t, c.value, values[0], typ)
		found, parked = set.Match(1, []Log{l}, watched{escrows: []common.Address{escrow}})
		require.Empty(t, found, typ)
		require.Len(t, parked, 1, typ)
		require.Equal(t, errShared.Error(), parked[0].Reason, typ)
	}
}

func TestLoad_Invalid_NamesTheProblemAndTheRemedy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ old, new, want string }{
		"no such event":               {"Opened(address, string)", "Opened(address)", `factory.events[0]: no ABI of this section has the event "Opened(address)": write its full signature; they have All(`},
		"unknown member":              {"status: active", "state: active", "field state not found"},
		"no escrow":                   {"      escrow: vault\n", "", "name the argument that holds the escrow's address"},
		"escrow of a string":          {"escrow: vault", "escrow: note", `the argument "note" for escrow is a string, not an address`},
		"no such argument":            {"escrow: vault", "escrow: safe", `it has no argument "safe" for escrow`},
		"unknown status":              {"status: active", "status: open", `the status "open" is none of active, released and refunded`},
		"escrow of an escrow's event": {"status: released", "escrow: text", "belongs to the escrow that emits it"},
		"amount":                      {"status: released", "amount: small", `the argument "small" for amount is a int8, not an unsigned integer`},
		"no events":                   {"    - event: Opened(address, string)\n      escrow: vault\n      status: active\n", "", "factory.events is empty"},
		"no file":                     {"factory:\n  abi: [types.json]", "factory:\n  abi: [missing.json]", "missing.json: no such file"},
		"a file elsewhere":            {"factory:\n  abi: [types.json]", "factory:\n  abi: [../types.json]", "../types.json"},
		"no ABI":                      {"factory:\n  abi: [types.json]", "factory:\n  abi: [events.yaml]", "events.yaml: is no ABI"},
		"twice":                       {"      status: active\n", "      status: active\n    - event: Opened(address,string)\n      escrow: vault\n", "cannot be told apart: both have 0 indexed arguments"},
		"two documents":               {"factory:", "---\n{}\n---\nfactory:", "more than one document"},
	} {
		require.Contains(t, other, test.old, name)
		_, err := Load(write(t, "events.yaml", strings.Replace(other, test.old, test.new, 1), "types.json", types))
		require.ErrorContains(t, err, test.want, name)
	}
	_, err := Load(filepath.Join(t.TempDir(), "missing.yaml"))
	require.ErrorContains(t, err, "missing.yaml")
	twin := strings.Replace(types, `"vault", "type": "address"}, {"name": "note", "type": "string"}`, `"vault", "type": "address"}, {"name": "note", "type": "string", "indexed": true}`, 1)
	_, err = Load(write(t, "events.yaml", other, "types.json", twin))
	require.ErrorContains(t, err, "cannot be told apart: both have 1 indexed arguments")
	same := strings.ReplaceAll(types, `"name": "note"`, `"name": "vault"`)
	_, err = Load(write(t, "events.yaml", other, "types.json", same))
	require.ErrorContains(t, err, `two arguments have the name "vault"`)
}

// A start compares the set with the stored one, so sets with the same meaning must have the same text, and no others.
func TestSet_String_IsThatOfTheMeaning(t *testing.T) {
	t.Parallel()
	text := func(content string) string {
		set, err := Load(write(t, "events.yaml", content, "types.json", types))
		require.NoError(t, err)
		return set.String()
	}
	base := text(other)
	require.Equal(t, base, text(strings.ReplaceAll(other, "(address, string)", "(address,string)")))
	require.NotEqual(t, base, text(strings.ReplaceAll(other, "status: released", "status: refunded")))
	require.Equal(t, "escrow Approved(address indexed approver)", strings.Split(BuiltIn().String(), "\n")[0])
	require.Equal(t, BuiltIn().String(), BuiltIn().String())
}

func TestMessage_Encode_HasAllMembers(t *testing.T) {
	t.Parallel()
	m := Message{
		Envelope: Envelope{EventID: "1:a", Revision: 2, Status: Retracted, Sequence: 3, Type: "Approved", ChainID: 1 << 63, Escrow: escrow}, Contract: factory,
		BlockNumber: 4, BlockHash: common.Hash{5}, BlockTime: time.Date(2026, 11, 12, 13, 14, 15, 0, time.UTC), TxHash: one, LogIndex: 0xfffffffc,
		Args: Args{{"z", "1"}, {"a", "\x00<\""}},
	}
	const want = `{"event_id":"1:a","revision":2,"status":"retracted","sequence":3,"type":"Approved","chain_id":9223372036854775808,` +
		`"escrow":"0x00000000000000000000000000000000000000e5","contract":"0xfa00000000000000000000000000000000000000","block_number":4,` +
		`"block_hash":"0x0500000000000000000000000000000000000000000000000000000000000000","block_time":"2026-11-12T13:14:15Z",` +
		`"tx_hash":"0x0100000000000000000000000000000000000000000000000000000000000000","log_index":4294967292,"args":{"z":"1","a":"\u0000<\""}}`
	text, err := m.Encode()
	require.NoError(t, err)
	require.Equal(t, want, string(text))
	var again Message
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, m, again)
	var members map[string]any
	decoder := json.NewDecoder(strings.NewReader(want))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&members))
	attributes := m.Attributes()
	require.Len(t, attributes, 7)
	for name, value := range attributes {
		text, err := json.Marshal(members[name])
		require.NoError(t, err)
		require.Equal(t, value, strings.Trim(string(text), `"`), name)
	}
	require.Equal(t, attributes["escrow"], m.OrderingKey())
	m.Args = nil
	text, err = m.Encode()
	require.NoError(t, err)
	require.Contains(t, string(text), `"args":{}`)
}

func TestPartition_IsTheAddressModulo2520(t *testing.T) {
	t.Parallel()
	require.NoError(t, quick.Check(func(a common.Address) bool {
		n := new(big.Int).Mod(new(big.Int).SetBytes(a[:]), big.NewInt(2520))
		return int64(Partition(a)) == n.Int64()
	}, nil))
}

// FuzzMatch checks that no log makes Match panic, and that messages of its results are valid JSON.
func FuzzMatch(f *testing.F) {
	set := BuiltIn()
	for _, topic := range set.Topics() {
		f.Add(topic[:], []byte{1}, []byte{2}, []byte{3}, make([]byte, 128), 4)
	}
	f.Fuzz(func(t *testing.T, a, b, c, d, data []byte, n int) {
		topics := []common.Hash{common.BytesToHash(a), common.BytesToHash(b), common.BytesToHash(c), common.BytesToHash(d)}
		l := Log{Contract: factory, Topics: topics[:max(0, min(n, 4))], Data: data}
		found, parked := set.Match(1, []Log{l, l}, watched{[]common.Address{factory}, []common.Address{factory}})
		for _, o := range found {
			m := Message{Envelope: Envelope{Escrow: o.Escrow}, Args: o.Args}
			text, err := m.Encode()
			if err != nil || !json.Valid(text) {
				t.Errorf("%s: %v", text, err)
			}
		}
		if len(found)+len(parked) > 2 {
			t.Errorf("%d events of two logs", len(found)+len(parked))
		}
	})
}
