// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

/// Counter counts calls by id, so that a test can tell how often each transaction was executed on the chain that won,
/// and fails in every way that a contract can.
contract Counter {
    /// A custom error with data.
    error Refused(address caller, uint256 code);

    /// One for each hit, with the count that it led to.
    event Hit(bytes32 indexed id, address indexed caller, uint256 count);

    /// How often each id was hit.
    mapping(bytes32 => uint256) public count;

    /// One more than how often any was. From 0 the first call would cost 17,100 gas more than the others do: whoever
    /// estimates a second one while the first is pending, and is mined before it, would run out.
    uint256 private calls = 1;

    /// What burn writes to, so that it costs what it says.
    uint256 private sink;

    /// Counts a call. Ether is welcome.
    function hit(bytes32 id) external payable {
        uint256 n = ++count[id];
        ++calls;
        emit Hit(id, msg.sender, n);
    }

    /// How often any was.
    function total() external view returns (uint256) {
        return calls - 1;
    }

    /// The counts of many ids, all as of one block.
    function counts(bytes32[] calldata ids) external view returns (uint256[] memory result) {
        result = new uint256[](ids.length);
        for (uint256 i = 0; i < ids.length; ++i) {
            result[i] = count[ids[i]];
        }
    }

    /// Reverts with a reason.
    function fail(string calldata reason) external payable {
        ++calls; // which the revert takes back
        revert(reason);
    }

    /// Reverts with the custom error.
    function refuse(uint256 code) external payable {
        ++calls;
        revert Refused(msg.sender, code);
    }

    /// Reverts without a word.
    function failSilently() external payable {
        ++calls;
        revert();
    }

    /// Panics with code 0x11, arithmetic overflow.
    function overflow() external payable {
        ++calls;
        calls = type(uint256).max;
        ++calls;
    }

    /// Runs out of gas, however much there is.
    function exhaust() external payable {
        while (true) {
            ++sink;
        }
    }

    /// Uses at least so much gas, and succeeds when there is some more.
    function burn(uint256 gas) external payable {
        uint256 start = gasleft();
        while (start - gasleft() < gas) {
            ++sink;
        }
    }

    /// Hits once a number of hits of another id is reached, and reverts before: what an estimate says may differ from
    /// what comes.
    function hitAfter(bytes32 id, bytes32 other, uint256 n) external payable {
        require(count[other] >= n, "not yet");
        uint256 m = ++count[id];
        ++calls;
        emit Hit(id, msg.sender, m);
    }
}
