package sender

import (
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/chain"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

func wei(n int64) *big.Int { return big.NewInt(n) }

var london = chain.Fees{
	EIP1559: true, BaseFee: wei(100), GasPrice: wei(103), Tips: [4]*big.Int{wei(1), wei(2), wei(3), wei(4)},
}

var legacy = chain.Fees{GasPrice: wei(50)}

func TestPrice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request relayer.Request
		fees    chain.Fees
		limit   *big.Int
		want    Offer
	}{
		"speed":             {relayer.Request{Speed: relayer.Fastest}, london, nil, Offer{wei(204), wei(4)}},
		"default speed":     {relayer.Request{}, london, nil, Offer{wei(203), wei(3)}},
		"capped":            {relayer.Request{Speed: relayer.SafeLow}, london, wei(150), Offer{wei(150), wei(1)}},
		"cap below the tip": {relayer.Request{Speed: relayer.Fastest}, london, wei(2), Offer{wei(2), wei(2)}},
		"own price":         {relayer.Request{GasPrice: wei(7)}, london, wei(5), Offer{wei(7), nil}},
		"own fees":          {relayer.Request{MaxFee: wei(300), MaxPriorityFee: wei(9)}, london, nil, Offer{wei(300), wei(9)}},
		"own fee, no tip":   {relayer.Request{MaxFee: wei(300), Speed: relayer.Average}, london, nil, Offer{wei(300), wei(2)}},
		"own fee below tip": {relayer.Request{MaxFee: wei(1), Speed: relayer.Fastest}, london, nil, Offer{wei(1), wei(1)}},
		"own tip alone":     {relayer.Request{MaxPriorityFee: wei(10)}, london, nil, Offer{wei(210), wei(10)}},
		"without base fee":  {relayer.Request{Speed: relayer.Fast}, legacy, nil, Offer{wei(50), nil}},
		"legacy, capped":    {relayer.Request{Speed: relayer.Fast}, legacy, wei(40), Offer{wei(40), nil}},
	} {
		got := Price(&c.request, c.fees, c.limit)
		require.Equal(t, c.want.MaxFee.String(), got.MaxFee.String(), name)
		require.Equal(t, c.want.Tip == nil, got.Tip == nil, name)
		if got.Tip != nil {
			require.Equal(t, c.want.Tip.String(), got.Tip.String(), name)
		}
	}
	require.Equal(t, "100", london.BaseFee.String(), "shared fees were changed")
}

func TestBump(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, now Offer
		limit       *big.Int
		want        *Offer // nil: at the cap
	}{
		"a tenth more":             {Offer{wei(200), wei(100)}, Offer{wei(1), wei(1)}, nil, &Offer{wei(220), wei(110)}},
		"rounded up":               {Offer{wei(201), wei(11)}, Offer{wei(1), wei(1)}, nil, &Offer{wei(222), wei(13)}},
		"at least one more":        {Offer{wei(3), wei(0)}, Offer{wei(1), wei(0)}, nil, &Offer{wei(4), wei(1)}},
		"what the chain asks for":  {Offer{wei(200), wei(100)}, Offer{wei(900), wei(300)}, nil, &Offer{wei(900), wei(300)}},
		"up to the cap":            {Offer{wei(200), wei(100)}, Offer{wei(900), wei(300)}, wei(250), &Offer{wei(250), wei(250)}},
		"a tenth is above the cap": {Offer{wei(200), wei(100)}, Offer{wei(900), wei(300)}, wei(219), nil},
		"exactly the cap":          {Offer{wei(200), wei(100)}, Offer{wei(1), wei(1)}, wei(220), &Offer{wei(220), wei(110)}},
		"legacy":                   {Offer{wei(200), nil}, Offer{wei(1), nil}, nil, &Offer{wei(220), nil}},
		"tip raises the fee":       {Offer{wei(100), wei(100)}, Offer{wei(1), wei(400)}, nil, &Offer{wei(400), wei(400)}},
		"tip cannot be raised":     {Offer{wei(100), wei(100)}, Offer{wei(1), wei(1)}, wei(109), nil},
	} {
		got, err := Bump(c.before, c.now, c.limit)
		if c.want == nil {
			require.ErrorIs(t, err, ErrAtCap, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.want.MaxFee.String(), got.MaxFee.String(), name)
		if c.want.Tip != nil {
			require.Equal(t, c.want.Tip.String(), got.Tip.String(), name)
			require.LessOrEqual(t, got.Tip.Cmp(got.MaxFee), 0, name)
		}
	}
}

func TestHeadroom_TwoBumpsStayUnderTheLimit(t *testing.T) {
	t.Parallel()
	require.Nil(t, headroom(nil))
	for _, limit := range []int64{2, 3, 10, 11, 12, 121, 999, 1_000_003, 100_000_000_000} {
		room := headroom(wei(limit))
		twice := tenthMore(tenthMore(room))
		require.LessOrEqual(t, twice.Int64(), limit)
		require.GreaterOrEqual(t, room.Int64(), limit*100/122-2, "the first attempt offers less than it could")
	}
}
